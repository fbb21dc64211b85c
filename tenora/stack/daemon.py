"""Starting and stopping the whole stack in the background. A supervisor runs the programs, a guard runs the supervisor,
and each starts the other again when it dies, so that no single process is one whose loss stops the platform.

Who is alive is told by file locks, which the kernel releases when their holder dies; no pid is ever trusted.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from tenora.settings import StackSettings
from tenora.stack.definition import Stack
from tenora.stack.secrets_file import choose_ports, load_secrets
from tenora.stack.supervisor import Supervisor, is_held, sole_holder

Role = Literal["supervise", "guard"]

_STOP: Final = "stop"
_LOOK_EVERY_S: Final = 0.5


def run_folder(settings: StackSettings) -> Path:
    """Locks, ports and the state file of the running stack."""
    return settings.root / "run"


def is_up(settings: StackSettings) -> bool:
    """Whether a supervisor or a guard is alive."""
    run = run_folder(settings)
    return run.exists() and (is_held(run / "supervise.lock") or is_held(run / "guard.lock"))


def start(settings: StackSettings) -> None:
    """Start supervisor and guard in the background and return at once."""
    run = run_folder(settings)
    run.mkdir(parents=True, exist_ok=True)
    (run / _STOP).unlink(missing_ok=True)
    (run / "state.json").unlink(missing_ok=True) if not is_up(settings) else None
    _spawn(settings, "supervise")


def stop(settings: StackSettings, timeout_s: float = 120) -> bool:
    """Ask everything to end and wait for it; False when it did not within ``timeout_s``."""
    run = run_folder(settings)
    if not run.exists():
        return True
    (run / _STOP).touch()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_held(run / "supervise.lock") and not is_held(run / "guard.lock"):
            return True
        time.sleep(0.2)
    return False


def supervise(settings: StackSettings) -> None:
    """Body of the supervisor process: run every program until the stop file appears or SIGTERM comes."""
    run = run_folder(settings)
    with _become_holder(run / "supervise.lock") as mine:
        if not mine:
            return
        ports = choose_ports(run)
        stack = Stack(settings, load_secrets(settings.root), ports)
        guard: list[subprocess.Popen[bytes]] = []
        next_look = 0.0

        def beside() -> None:
            nonlocal next_look
            if time.monotonic() < next_look:
                return
            next_look = time.monotonic() + _LOOK_EVERY_S
            if (run / _STOP).exists():
                signal.raise_signal(signal.SIGTERM)
            else:
                _keep_alive(settings, "guard", guard)

        Supervisor(stack.programs(), run, beside).run()
        (run / _STOP).touch()  # a SIGTERM is a wish to stop: the guard must not undo it


def guard(settings: StackSettings) -> None:
    """Body of the guard process: start the supervisor again whenever it has died without being asked to."""
    run = run_folder(settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with _become_holder(run / "guard.lock") as mine:
        supervisor: list[subprocess.Popen[bytes]] = []
        while mine and not (run / _STOP).exists():
            _keep_alive(settings, "supervise", supervisor)
            time.sleep(_LOOK_EVERY_S)


def _keep_alive(settings: StackSettings, role: Role, spawned: list[subprocess.Popen[bytes]]) -> None:
    """Start ``role`` unless it lives; at most one start is under way at a time, and the dead are reaped."""
    spawned[:] = [process for process in spawned if process.poll() is None]
    if not spawned and not is_held(run_folder(settings) / f"{role}.lock"):
        spawned.append(_spawn(settings, role))


def _spawn(settings: StackSettings, role: Role) -> subprocess.Popen[bytes]:
    log = settings.root / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TENORA_HOME": str(settings.root)}
    with log.open("ab") as out:
        return subprocess.Popen(
            (sys.executable, "-m", "tenora", role),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextlib.contextmanager
def _become_holder(lock: Path) -> Iterator[bool]:
    """Hold the lock, trying for 2 s: others may be looking at it, which takes it for an instant."""
    deadline = time.monotonic() + 2
    while True:
        with sole_holder(lock) as mine:
            if mine or time.monotonic() > deadline:
                yield mine
                return
        time.sleep(0.05)
