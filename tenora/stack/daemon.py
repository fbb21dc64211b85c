"""Starts and stops the whole stack in the background. A supervisor runs the programs, a guard runs the supervisor, and
each restarts the other when it dies, so that no single process stops the platform.

File locks show which of them is alive: the kernel releases a lock when its holder dies. No pid is trusted.
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
from tenora.stack.definition import REPLICA_STOP_S, Stack, replica_names
from tenora.stack.local_placer import ReplicaCopy, WantedPools
from tenora.stack.program import Program
from tenora.stack.secrets_file import PORT_USES, PORTS, choose_ports, load_ports, load_secrets
from tenora.stack.supervisor import DRAIN_ENDS_S, Supervisor, is_held, replace_text, sole_holder

Role = Literal["supervise", "guard"]

_STOP: Final = "stop"
_REPLICAS: Final = "replicas"  # how many should run
_CHECK_PERIOD_S: Final = 0.5
_STOP_TIMEOUT_S: Final = REPLICA_STOP_S + DRAIN_ENDS_S + 60  # after the replicas, the stores stop


def run_folder(settings: StackSettings) -> Path:
    """Locks, ports and the state file of the running stack."""
    return settings.root / "run"


def is_up(settings: StackSettings) -> bool:
    """Whether a supervisor or a guard is alive."""
    run = run_folder(settings)
    return run.exists() and (is_held(run / "supervise.lock") or is_held(run / "guard.lock"))


def is_supervised(settings: StackSettings) -> bool:
    """Whether a supervisor is alive: without one, nothing keeps the state that the last one wrote."""
    return is_held(run_folder(settings) / "supervise.lock")


def start(settings: StackSettings) -> None:
    """Start supervisor and guard in the background and return at once."""
    run = run_folder(settings)
    run.mkdir(parents=True, exist_ok=True)
    (run / _STOP).unlink(missing_ok=True)
    if not is_up(settings):
        (run / "state.json").unlink(missing_ok=True)
        scale(settings, settings.replicas)
    _spawn(settings, "supervise")


def scale(settings: StackSettings, replicas: int) -> None:
    """Tell the supervisor, which looks twice a second, how many replicas should run until the next start."""
    replace_text(run_folder(settings) / _REPLICAS, str(replicas))


def wanted_replicas(settings: StackSettings) -> int:
    """How many replicas of the running stack should run."""
    try:
        return int((run_folder(settings) / _REPLICAS).read_text())
    except FileNotFoundError:  # an earlier version started it
        return settings.replicas


def stop(settings: StackSettings, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
    """Ask every program to stop and wait for it. Returns False when some still run after ``timeout_s``."""
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
    """Body of the supervisor process: run every program until the stop file appears or SIGTERM arrives."""
    run = run_folder(settings)
    with _become_holder(run / "supervise.lock") as held:
        if not held:
            return
        secrets, replicas = load_secrets(settings.root), wanted_replicas(settings)
        copies: list[ReplicaCopy] = []
        guard: list[subprocess.Popen[bytes]] = []
        next_check, cores = 0.0, len(os.sched_getaffinity(0))

        def programs(ports: dict[str, int]) -> list[Program]:
            """Those of so many replicas, with these ports and new ones where they need more."""
            names = (*replica_names(replicas), *(copy.name for copy in copies))
            ports = choose_ports(run, names, **ports)
            return Stack(settings.model_copy(update={"replicas": replicas}), secrets, ports).programs(copies)

        def on_tick() -> None:
            nonlocal next_check, replicas, copies
            if time.monotonic() < next_check:
                return
            next_check = time.monotonic() + _CHECK_PERIOD_S
            if (run / _STOP).exists():
                signal.raise_signal(signal.SIGTERM)
                return
            _keep_alive(settings, "guard", guard)
            count = wanted_replicas(settings)
            wanted = pools.copies(supervisor.states, copies_max=max(0, cores + 1 - count))
            if (count, wanted) != (replicas, copies):
                running = {f"{name}_{use}" for name in supervisor.states for use in PORT_USES}
                ports = {
                    name: port
                    for name, port in load_ports(run).items()
                    if name in running or name in public or name in PORTS
                }
                replicas, copies = count, wanted
                supervisor.want(programs(ports))

        public = {"gateway": settings.gateway_port, "control": settings.control_port}
        supervisor = Supervisor(programs(public), run, on_tick)
        pools = WantedPools(Stack(settings, secrets, load_ports(run)).addresses.redis_url)
        if settings.places_pools:
            pools.start()
        supervisor.run()
        (run / _STOP).touch()  # SIGTERM means stop: the guard must not restart the supervisor


def guard(settings: StackSettings) -> None:
    """Body of the guard process: restart the supervisor when it dies without a stop request."""
    run = run_folder(settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with _become_holder(run / "guard.lock") as held:
        supervisor: list[subprocess.Popen[bytes]] = []
        while held and not (run / _STOP).exists():
            _keep_alive(settings, "supervise", supervisor)
            time.sleep(_CHECK_PERIOD_S)


def _keep_alive(settings: StackSettings, role: Role, spawned: list[subprocess.Popen[bytes]]) -> None:
    """Start ``role`` unless it is alive. At most one start is in progress; dead processes are reaped."""
    spawned[:] = [process for process in spawned if process.poll() is None]
    if not spawned and not is_held(run_folder(settings) / f"{role}.lock"):
        spawned.append(_spawn(settings, role))


def _spawn(settings: StackSettings, role: Role) -> subprocess.Popen[bytes]:
    log = settings.root / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            (sys.executable, "-m", "tenora", role),
            env={**os.environ, "TENORA_HOME": str(settings.root)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextlib.contextmanager
def _become_holder(lock: Path) -> Iterator[bool]:
    """Hold the lock, trying for 2 s: another process that checks the lock holds it for an instant."""
    deadline = time.monotonic() + 2
    while True:
        with sole_holder(lock) as held:
            if held or time.monotonic() > deadline:
                yield held
                return
        time.sleep(0.05)
