"""Keeps the programs of one machine alive: starts each when its dependencies are ready, restarts it when it ends, and
stops all of them in reverse order. It writes its state to ``run/state.json`` after every change.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tenora.stack.program import Program

State = Literal["waiting", "starting", "ready", "restarting", "stopping", "done"]

_BACKOFF_FIRST_S: Final = 0.2
_STEADY_S: Final = 30.0  # a program that was ready this long starts again without delay
_TICK_S: Final = 0.1
_READY_TICK_S: Final = 0.5  # while every program is ready; the end of one is seen at once
_LEFTOVERS_S: Final = 20.0
_LAST_REQUEST_S: Final = 5.0
DRAIN_ENDS_S: Final = 25.0  # after a second signal: it sends its last counts and stops its engine


@dataclass
class Child:
    """One program and its present state."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    state: State = "waiting"
    restarts: int = 0
    backoff_s: float = _BACKOFF_FIRST_S
    started: float = 0.0
    ready_since: float | None = None
    start_after: float = 0.0
    kill_after: float = 0.0

    def restart_later(self, now: float) -> None:
        """Start it again after a pause, which doubles until the program has been ready for a while."""
        if self.ready_since is not None and now - self.ready_since > _STEADY_S:
            self.backoff_s = _BACKOFF_FIRST_S
        self.start_after = now + self.backoff_s
        self.backoff_s = min(self.backoff_s * 2, self.program.backoff_max_s)
        self.restarts += 1
        self.state, self.ready_since = "restarting", None


class Supervisor:
    """Runs programs until it is asked to stop. Each tick calls ``on_tick``: about ten times a second, or twice while
    every program is ready, and at each signal.
    """

    def __init__(self, programs: list[Program], run_folder: Path, on_tick: Callable[[], None]) -> None:
        self._wanted = {program.name: program for program in programs}
        self._children = {name: Child(program) for name, program in self._wanted.items()}
        self._wave: list[Child] = []  # those that the supervisor stops now, at its own end
        self._state_file = run_folder / "state.json"
        self._on_tick = on_tick
        self._stopping = False
        self._written = ""

    def want(self, programs: Sequence[Program]) -> None:
        """From now on keep these running. A new one is started, and one that still stops is started after its end; one
        that is gone is stopped and then forgotten; the others run on, and follow a changed definition from their next
        start on. Others may need none that is gone.
        """
        self._wanted = {program.name: program for program in programs}
        for name, program in self._wanted.items():
            self._children.setdefault(name, Child(program)).program = program
        for name, child in list(self._children.items()):
            if name in self._wanted:
                continue
            if child.process is None:
                del self._children[name]
            else:
                _ask_to_stop(child, within_s=max(child.program.stop_s, child.program.drain_s))

    @property
    def states(self) -> dict[str, State]:
        """The present state of each program."""
        return {name: child.state for name, child in self._children.items()}

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. A second one ends the drains of the programs that stop now; what they need stops
        after them. Call from the main thread: its death makes the kernel stop the children.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # a program has ended: wakes the loop below
        end_leftovers(self._state_file)
        with _woken_by_signals() as woken:
            while not self._stopping:
                for child in list(self._children.values()):
                    self._advance(child)
                self._write_state()
                self._on_tick()
                is_ready = all(child.state in ("ready", "done") for child in self._children.values())
                select.select([woken], [], [], _READY_TICK_S if is_ready else _TICK_S)
                with contextlib.suppress(BlockingIOError):
                    woken.recv(4096)
        self._stop_all()

    def _request_stop(self, _number: int, _frame: object) -> None:
        """The second time, the programs that stop now are asked again: that ends a drain."""
        for child in self._wave:
            if (process := child.process) is not None:
                process.send_signal(child.program.stop_signal)
        self._stopping = True

    def _advance(self, child: Child) -> None:
        if child.state == "done":
            return
        if child.process is None:
            needed = (self._children[name].state for name in child.program.needs)
            starting = (self._children[name].state for name in child.program.after if name in self._children)
            if (
                time.monotonic() >= child.start_after
                and all(state in ("ready", "done") for state in needed)
                and all(state not in ("waiting", "starting") for state in starting)
            ):
                child.process = child.program.start()
                child.started = time.monotonic()
                child.state = "starting"
        elif child.state == "stopping":
            self._forget_ended(child)
        elif (status := child.process.poll()) is not None:
            self._restart_later(child, status)
        elif child.state == "starting" and not child.program.once:
            if child.program.ready():
                child.state, child.ready_since = "ready", time.monotonic()
            elif time.monotonic() - child.started > child.program.ready_s:
                _end_group(child.process.pid, signal.SIGKILL)  # hung at its start; the next tick restarts it

    def _forget_ended(self, child: Child) -> None:
        assert child.process is not None
        if child.process.poll() is None and time.monotonic() < child.kill_after:
            return
        _end_group(child.process.pid, signal.SIGKILL)
        child.process.wait()
        name = child.program.name
        del self._children[name]
        if name in self._wanted:  # again, while it stopped
            self._children[name] = Child(self._wanted[name])

    def _restart_later(self, child: Child, status: int) -> None:
        assert child.process is not None
        _end_group(child.process.pid, signal.SIGKILL)  # processes that it left behind must not run beside its successor
        child.process = None
        if child.program.once and status == 0:
            child.state = "done"
            return
        child.restart_later(time.monotonic())

    def _stop_all(self) -> None:
        """Stop dependents before their dependencies. Each gets its ``stop_s``, one that drains then a second signal and
        a little more; then its process group is killed.
        """
        remaining = [child for child in self._children.values() if child.process is not None]
        while remaining:
            needed = {name for child in remaining for name in self._needed_by(child)}
            self._wave = [child for child in remaining if child.program.name not in needed] or remaining
            for child in self._wave:
                _ask_to_stop(child, within_s=child.program.stop_s)
            draining = [child for child in self._wave if not _has_ended(child) and child.program.drain_s]
            for child in draining:
                assert child.process is not None
                child.process.send_signal(child.program.stop_signal)
                child.kill_after = time.monotonic() + DRAIN_ENDS_S
            for child in self._wave:
                assert child.process is not None
                _has_ended(child)
                _end_group(child.process.pid, signal.SIGKILL)
                child.process.wait()
                child.process = None
                child.state = "waiting"
            remaining = [child for child in remaining if child.process is not None]
        self._write_state()

    def _needed_by(self, child: Child) -> set[str]:
        """What it needs, also through steps that are done."""
        direct = child.program.needs
        return set(direct).union(*(self._needed_by(self._children[name]) for name in direct))

    def _write_state(self) -> None:
        programs = {
            name: {
                "state": child.state,
                "pid": child.process.pid if child.process else None,
                "restarts": child.restarts,
                "log": str(child.program.log),
            }
            for name, child in self._children.items()
        }
        text = json.dumps({"supervisor_pid": os.getpid(), "programs": programs}, indent=1)
        if text != self._written:
            replace_text(self._state_file, text)
            self._written = text


def replace_text(file: Path, text: str) -> None:
    """Write a file so that each reader sees all of the old or all of the new text."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(file)


def _ask_to_stop(child: Child, *, within_s: float) -> None:
    """Once, because a second signal ends a drain. It gets so long from now on, or less if it was asked before."""
    assert child.process is not None
    deadline = time.monotonic() + within_s
    if child.state != "stopping":
        child.process.send_signal(child.program.stop_signal)
        child.state, child.kill_after = "stopping", deadline
    child.kill_after = min(child.kill_after, deadline)


def _has_ended(child: Child) -> bool:
    """Wait for its end until it would be killed."""
    assert child.process is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(max(0, child.kill_after - time.monotonic()))
    return child.process.returncode is not None


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[socket.socket]:
    """A socket that can be read after each signal with a handler. A sleep would go on after it."""
    woken, wakes = socket.socketpair()
    with woken, wakes:
        woken.setblocking(False)
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(-1)


def end_leftovers(state_file: Path) -> None:
    """End programs that a killed supervisor left running. The kernel asked them to stop when it died. Those that still
    run after 15 s are asked again, which ends a drain, and after 20 s they are killed.
    """
    try:
        programs = json.loads(state_file.read_text())["programs"]
    except (OSError, ValueError, KeyError):
        return
    ending = {name: record | {"state": "stopping"} for name, record in programs.items()}
    replace_text(state_file, json.dumps({"programs": ending}))  # its pids stay, for the case that this process dies too
    # A pid is trusted only while it still leads a group in which our own home is in the environment.
    groups = [
        record["pid"] for record in programs.values() if record["pid"] and _is_ours(record["pid"], state_file.parent)
    ]
    deadline = time.monotonic() + _LEFTOVERS_S
    groups = _wait_for_end(groups, deadline - _LAST_REQUEST_S)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, signal.SIGTERM)  # only the leader: it ends its own children
    groups = _wait_for_end(groups, deadline)
    for group in groups:
        _end_group(group, signal.SIGKILL)


def _wait_for_end(groups: list[int], deadline: float) -> list[int]:
    """The groups that still run at the deadline."""
    while (groups := [group for group in groups if _runs(group)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return groups


def _is_ours(group: int, run_folder: Path) -> bool:
    """Whether any process of this group carries our home in its environment: a recycled pid does not."""
    marker = f"TENORA_HOME={run_folder.parent}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group and marker in (process / "environ").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def _runs(group: int) -> bool:
    """Whether any process of the group still runs. A zombie does not count."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _parent, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False


def _end_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


@contextlib.contextmanager
def sole_holder(lock: Path) -> Iterator[bool]:
    """Hold a lock file for the block; yields False at once when another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def is_held(lock: Path) -> bool:
    """Whether a living process holds this lock file."""
    with sole_holder(lock) as held:
        return not held
