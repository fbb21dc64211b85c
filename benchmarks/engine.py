"""One vLLM engine for a benchmark, started exactly as a replica starts it, with adapters of random weights. Gateways,
Redis and S3 are not part of it: what they cost is measured elsewhere.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from data_plane.engine.launch import engine_argv, engine_env
from data_plane.engine.plugin import ACTIVATION, installed_engine
from data_plane.engine.settings import ReplicaSettings

_START_S = 300.0


@dataclass(frozen=True, kw_only=True)
class RunningEngine:
    """Where it listens, and the key that its door asks for."""

    url: str
    key: str
    model: str
    device: str


@contextlib.contextmanager
def running_engine(
    model: Path, adapters: Mapping[str, Path], *, log: Path, slots: int, ours: bool = True, rank_max: int = 16
) -> Iterator[RunningEngine]:
    """An engine that knows ``adapters`` by name. Without ``ours`` it runs vLLM's own LoRA operations.

    Raises RuntimeError, with the end of its log, when it is not up within five minutes.
    """
    device, _ = installed_engine()
    key = secrets.token_hex(16)
    settings = ReplicaSettings(
        model_path=model, base_model="base", engine_port=_free_port(), engine_key=SecretStr(key), engine_slots=slots,
        engine_memory_adapters=max(slots, len(adapters)), engine_rank_max=rank_max, redis_url="redis://127.0.0.1:1",
    )  # fmt: skip
    argv = [*engine_argv(settings, device), "--no-enable-prefix-caching"]
    argv += ["--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
    env = {**engine_env(settings, device, dict(os.environ)), "TENORA_ENGINE_KEY": key}
    if not ours:
        env[ACTIVATION] = "stock"  # the plugin then replaces nothing
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
            argv, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://{settings.engine_host}:{settings.engine_port}"
        _wait_until_up(url, process, log)
        yield RunningEngine(url=url, key=key, model="base", device=device)
    finally:
        _stop(process)


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{url}/health", timeout=2).close()  # noqa: S310 - our own address
            return
        time.sleep(0.5)
    last = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    raise RuntimeError(f"the engine did not start; the end of its log:\n{last}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The engine's own processes end with it: it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
