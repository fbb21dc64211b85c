"""`tenora fleet scale` on a running supervisor, whose replicas are defined as always and run nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tenora.cli import main
from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.definition import cores_of
from tests.conftest import wait_until

SUPERVISOR = """
import sys
from dataclasses import replace
from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.definition import Stack

argv, define = (sys.executable, "-c", "import time; time.sleep(600)"), Stack._replica
Stack._programs = lambda stack: []
Stack._replica = lambda *given: replace(define(*given), argv=argv, needs=(), ready=lambda: True)
daemon._keep_alive = lambda *_: None
daemon.supervise(StackSettings())
"""
BOUND = "VLLM_CPU_OMP_THREADS_BIND"


class RunningStack:
    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings
        self._process = self._start()

    def _start(self) -> subprocess.Popen:
        own = {"TENORA_HOME": str(self.settings.root)}
        return subprocess.Popen([sys.executable, "-c", SUPERVISOR], env={**os.environ, **own})

    def restart(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def close(self) -> None:
        assert daemon.stop(self.settings, 60)
        assert self._process.wait(10) == 0

    def programs(self) -> dict:
        try:
            return json.loads((daemon.run_folder(self.settings) / "state.json").read_text())["programs"]
        except FileNotFoundError:
            return {}

    def comes_to(self, *names: str) -> dict[str, int]:
        """Wait until exactly these programs are ready; their pids."""
        ready = dict.fromkeys(names, "ready")
        wait_until(lambda: {name: each["state"] for name, each in self.programs().items()} == ready, what=str(names))
        return {name: each["pid"] for name, each in self.programs().items()}


@pytest.fixture
def stack(tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_HOME", str(tmp_path))
    monkeypatch.setenv("TENORA_REPLICAS", "1")
    running = RunningStack(StackSettings())
    yield running
    running.close()


def scale(replicas: int, monkeypatch, *, cores: int = 4):
    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        return CliRunner().invoke(main, ["fleet", "scale", str(replicas)])


def setting(pid: int, name: str) -> str | None:
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(each.split("=", 1) for each in environment if each).get(name)


def test_replicas_are_added_to_a_running_stack_and_the_newest_are_stopped(stack, monkeypatch):
    first = stack.comes_to("replica")
    assert setting(first["replica"], BOUND) is None
    assert scale(3, monkeypatch).exit_code == 0
    more = stack.comes_to("replica", "replica-2", "replica-3")
    assert more["replica"] == first["replica"]
    assert setting(more["replica-3"], BOUND) == cores_of(2, 3, sorted(os.sched_getaffinity(0)))
    ports = [setting(pid, f"TENORA_{use}_PORT") for pid in more.values() for use in ("ENGINE", "METRICS")]
    assert len(set(ports)) == len(ports)
    refused = scale(4, monkeypatch, cores=2)
    assert (refused.exit_code, "Use at most 2." in refused.output) == (1, True)
    assert scale(2, monkeypatch, cores=1).exit_code == 0, "fewer are never refused"
    assert stack.comes_to("replica", "replica-2") == {name: more[name] for name in ("replica", "replica-2")}


def test_a_supervisor_that_is_restarted_keeps_the_number_and_another_start_does_not(stack, monkeypatch):
    stack.comes_to("replica")
    assert scale(2, monkeypatch).exit_code == 0
    before = stack.comes_to("replica", "replica-2")
    stack.restart()
    wait_until(lambda: stack.programs()["replica-2"]["pid"] not in (None, before["replica-2"]), what="another start")
    stack.comes_to("replica", "replica-2")
    monkeypatch.setattr(daemon, "_spawn", lambda *_: None)
    monkeypatch.setattr(daemon, "is_up", lambda _: False)
    daemon.start(stack.settings)
    stack.comes_to("replica")
