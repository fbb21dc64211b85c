"""Two alternatives to Tenora's gateway, LiteLLM's proxy and vllm-router, each pinned in its own virtual environment.

A peer that cannot be installed or started is reported as not measured; it gets no figures.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from benchmarks.gateway.exchange import MODEL
from tenora.stack.program import Program, answers, free_port
from tests.fixtures.processes import running

_INSTALL_S: Final = 1200
_START_S: Final = 180
_KEY: Final = "sk-key-of-the-benchmark"


class PeerUnavailable(Exception):
    """A peer cannot be measured on this machine; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A pip requirement, and the command that it installs."""

    name: str
    requirement: str
    command: str


LITELLM: Final = Peer(name="litellm", requirement="litellm[proxy]==1.106.0", command="litellm")
ROUTER: Final = Peer(name="vllm-router", requirement="vllm-router==0.1.17", command="vllm-router")


def installed(peer: Peer, home: Path) -> Path:
    """The peer's command, installed under ``home`` if it is missing. pip's own settings (PIP_*) apply.

    Raises PeerUnavailable.
    """
    folder = home / peer.requirement.replace("[", "-").replace("]", "").replace("==", "-")
    stamp, command = folder / ".installed", folder / "bin" / peer.command
    if stamp.exists() and command.exists():
        return command
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    steps = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", peer.requirement],
    )
    for step in steps:
        try:
            done = subprocess.run(  # noqa: S603 - pip, with what is pinned above
                step, capture_output=True, text=True, timeout=_INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerUnavailable(f"{peer.requirement} was not installed within {_INSTALL_S} s") from None
        if done.returncode != 0:
            raise PeerUnavailable(f"{peer.requirement} cannot be installed: {done.stderr.strip()[-300:]}")
    stamp.touch()
    return command


@contextlib.contextmanager
def litellm(command: Path, folder: Path, upstream: str) -> Iterator[tuple[int, str, int]]:
    """Start LiteLLM's proxy with one worker and no database. Yields its port, its API key and its process id."""
    config = folder / "litellm.json"  # JSON is YAML
    parameters = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "none"}
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
                "general_settings": {"master_key": _KEY},
                "litellm_settings": {"telemetry": False},
            }
        )
    )
    port = free_port()
    program = _program(
        "litellm", folder, port, "/health/liveliness",
        (str(command), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"},
    )  # fmt: skip
    with _started(program) as process:
        yield port, _KEY, process.pid


@contextlib.contextmanager
def router(command: Path, folder: Path, upstream: str) -> Iterator[tuple[int, str, int]]:
    """Start vllm-router in front of the upstream. Yields as ``litellm`` does; the router checks no keys."""
    port, metrics_port = free_port(), free_port()
    program = _program(
        "vllm-router", folder, port, "/health",
        (
            str(command), "--worker-urls", upstream, "--host", "127.0.0.1", "--port", str(port),
            "--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(metrics_port),
        ),
        {},
    )  # fmt: skip
    with _started(program) as process:
        yield port, "none", process.pid


def _program(name: str, folder: Path, port: int, path: str, argv: tuple[str, ...], env: dict[str, str]) -> Program:
    return Program(
        name=name, argv=argv, ready=lambda: answers(f"http://127.0.0.1:{port}{path}"), log=folder / f"{name}.log",
        env=env, ready_s=_START_S,
    )  # fmt: skip


@contextlib.contextmanager
def _started(program: Program) -> Iterator["subprocess.Popen[bytes]"]:
    with contextlib.ExitStack() as opened:
        try:
            process = opened.enter_context(running(program))
        except (AssertionError, pytest.fail.Exception) as error:
            raise PeerUnavailable(f"{program.name} does not start: {str(error)[-300:]}") from None
        yield process
