"""The supervisor on real, tiny processes: order, restarts, clean stops and leftovers of a killed supervisor."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tenora.stack.program import Program
from tenora.stack.supervisor import Supervisor, end_leftovers, is_held, sole_holder
from tests.conftest import wait_until

SLEEPER = "import time; time.sleep(600)"


def program(folder: Path, name: str, code: str = SLEEPER, **fields) -> Program:
    defaults = {"ready": lambda: True, "env": {"TENORA_HOME": str(folder)}, "log": folder / f"{name}.log", "stop_s": 3}
    return Program(name=name, argv=(sys.executable, "-c", code), **{**defaults, **fields})


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def supervised(run_folder, monkeypatch):
    """Runs a supervisor's loop in a thread and does not change the process-wide signal handlers."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_, **__: -1)
    running = []

    def start(*programs, on_tick=lambda: None):
        supervisor = Supervisor(list(programs), run_folder, on_tick)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        running.append((supervisor, thread))
        return supervisor

    yield start
    for supervisor, thread in running:
        supervisor._request_stop(signal.SIGTERM, None)
        thread.join(20)
        assert not thread.is_alive()


def state(run_folder: Path) -> dict:
    try:
        return json.loads((run_folder / "state.json").read_text())["programs"]
    except OSError:
        return {}


def is_in_state(run_folder, name, wanted):
    return lambda: state(run_folder).get(name, {}).get("state") == wanted


def test_a_program_starts_only_after_what_it_needs(run_folder, supervised, tmp_path):
    step = program(tmp_path, "step", f"import time; time.sleep(0.3); open({str(tmp_path / 'made')!r}, 'w')", once=True)
    reader = program(tmp_path, "reader", f"open({str(tmp_path / 'made')!r}); {SLEEPER}", needs=("step",))
    supervised(reader, step)
    wait_until(is_in_state(run_folder, "reader", "ready"))
    assert state(run_folder)["step"]["state"] == "done"
    assert state(run_folder)["reader"]["restarts"] == 0


def test_a_killed_program_comes_back_with_another_pid(run_folder, supervised, tmp_path):
    supervised(program(tmp_path, "one"))
    wait_until(is_in_state(run_folder, "one", "ready"))
    first = state(run_folder)["one"]["pid"]
    os.kill(first, signal.SIGKILL)
    wait_until(
        lambda: state(run_folder)["one"]["pid"] not in (None, first) and is_in_state(run_folder, "one", "ready")()
    )
    assert state(run_folder)["one"]["restarts"] == 1


def test_children_of_a_dead_program_are_ended_with_it(run_folder, supervised, tmp_path):
    code = f"""if True:
        import subprocess, sys
        child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])
        print(child.pid, flush=True)
        child.wait()"""
    supervised(program(tmp_path, "parent", code))
    log = tmp_path / "parent.log"
    wait_until(lambda: log.exists() and log.read_text().strip())
    grandchild = int(log.read_text().split()[0])
    os.kill(state(run_folder)["parent"]["pid"], signal.SIGKILL)
    wait_until(
        lambda: not Path(f"/proc/{grandchild}").exists() or "zombie" in Path(f"/proc/{grandchild}/status").read_text()
    )


def test_a_program_that_ignores_the_stop_signal_is_killed_in_time(run_folder, supervised, tmp_path, promised_s):
    code = (
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path / 'up')!r}, 'w'); {SLEEPER}"
    )
    supervisor = supervised(program(tmp_path, "stubborn", code, ready=(tmp_path / "up").exists, stop_s=0.5))
    wait_until(is_in_state(run_folder, "stubborn", "ready"))
    pid = state(run_folder)["stubborn"]["pid"]
    started = time.monotonic()
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert time.monotonic() - started < promised_s(5)


def test_dependents_stop_before_what_they_need_also_through_steps(run_folder, supervised, tmp_path):
    def records_its_end(name):
        return f"""if True:
            import signal, sys
            def stop(*_):
                open({str(tmp_path / "order")!r}, 'a').write('{name} ')
                sys.exit()
            signal.signal(signal.SIGTERM, stop)
            open({str(tmp_path / name)!r}, 'w')
            {SLEEPER}"""

    below = program(tmp_path, "below", records_its_end("below"), ready=(tmp_path / "below").exists)
    step = program(tmp_path, "step", "", once=True, needs=("below",))
    above = program(tmp_path, "above", records_its_end("above"), ready=(tmp_path / "above").exists, needs=("step",))
    supervisor = supervised(below, step, above)
    wait_until(is_in_state(run_folder, "above", "ready"))
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: (tmp_path / "order").exists() and (tmp_path / "order").read_text() == "above below ")


def test_leftovers_of_a_killed_supervisor_are_ended_but_strangers_are_not(run_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("tenora.stack.supervisor._LEFTOVERS_S", 5.5)  # half a second until they are asked
    ours = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], env={**os.environ, "TENORA_HOME": str(tmp_path)}, start_new_session=True
    )
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    records = {name: {"pid": process.pid} for name, process in (("ours", ours), ("stranger", stranger))}
    (run_folder / "state.json").write_text(json.dumps({"programs": records}))
    end_leftovers(run_folder / "state.json")
    assert ours.wait(5) == -signal.SIGTERM
    assert stranger.poll() is None
    left = json.loads((run_folder / "state.json").read_text())["programs"]
    assert left == {name: record | {"state": "stopping"} for name, record in records.items()}, "nothing is ready"
    stranger.kill()
    stranger.wait()


def test_a_lock_has_one_holder_and_is_free_when_it_dies(tmp_path):
    lock = tmp_path / "run" / "lock"
    with sole_holder(lock) as first:
        assert first
        assert is_held(lock)
        with sole_holder(lock) as second:
            assert not second
    assert not is_held(lock)


def test_a_program_waits_for_the_start_of_those_before_it_and_not_for_one_that_cannot_start(
    run_folder, supervised, tmp_path
):
    is_up = tmp_path / "up"
    broken = program(tmp_path, "broken", "raise SystemExit(1)")
    slow = program(tmp_path, "slow", ready=is_up.exists, after=("broken",))
    last = program(tmp_path, "last", after=("broken", "slow"))
    supervised(last, slow, broken)
    wait_until(is_in_state(run_folder, "slow", "starting"))
    assert state(run_folder)["last"]["state"] == "waiting"
    is_up.touch()
    wait_until(is_in_state(run_folder, "last", "ready"))
    assert state(run_folder)["broken"]["restarts"] > 0


SIGNALLED = """
import pathlib, signal, sys, time
here, signals = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def on_signal(*_):
    (here / "asked").open("a").write(".")
    if len((here / "asked").read_text()) == signals:
        sys.exit()
signal.signal(signal.SIGTERM, on_signal)
(here / "up").touch()
while True:
    time.sleep(60)
"""


def patient(folder: Path, name: str, *, signals: int) -> Program:
    """A program that ends at the given SIGTERM, and whose folder counts them in ``asked``."""
    (here := folder / name).mkdir()
    one = program(folder, name, SIGNALLED, ready=(here / "up").exists, stop_s=60)
    return replace(one, argv=(*one.argv, str(here), str(signals)))


def test_a_program_that_is_no_longer_wanted_drains_and_the_others_run_on(run_folder, supervised, tmp_path):
    one, two, three = program(tmp_path, "one"), patient(tmp_path, "two", signals=1), program(tmp_path, "three")
    changed = replace(one, env={"CHANGED": "1", **one.env})
    wanted = []
    supervisor = supervised(one, two, on_tick=lambda: wanted and supervisor.want(wanted.pop()))
    wait_until(lambda: all(is_in_state(run_folder, name, "ready")() for name in ("one", "two")))
    before = state(run_folder)["one"]["pid"]
    wanted.append([changed, three])
    wait_until(lambda: set(state(run_folder)) == {"one", "three"}, what="the change")
    wait_until(is_in_state(run_folder, "three", "ready"))
    assert (tmp_path / "two" / "asked").read_text() == "."
    assert state(run_folder)["one"]["pid"] == before
    os.kill(before, signal.SIGKILL)
    after = wait_until(lambda: (pid := state(run_folder)["one"]["pid"]) != before and pid, what="its next start")
    wait_until(lambda: b"CHANGED=1" in Path(f"/proc/{after}/environ").read_bytes(), what="its changed definition")


def test_a_program_that_is_wanted_again_while_it_drains_starts_again_after_its_end(run_folder, supervised, tmp_path):
    one, two = program(tmp_path, "one"), patient(tmp_path, "two", signals=2)
    wanted = []
    supervisor = supervised(one, two, on_tick=lambda: wanted and supervisor.want(wanted.pop()))
    wait_until(is_in_state(run_folder, "two", "ready"))
    first = state(run_folder)["two"]["pid"]
    wanted.append([one])
    wait_until((tmp_path / "two" / "asked").exists, what="the drain")
    wanted.append([one, two])
    wait_until(lambda: not wanted, what="the second change")
    assert state(run_folder)["two"]["pid"] == first
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: state(run_folder).get("two", {}).get("pid") not in (None, first), what="another start")
    assert (tmp_path / "two" / "asked").read_text() == "."


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """The processes that the supervisor sends a signal, by their pids."""
    asked, send = [], subprocess.Popen.send_signal
    monkeypatch.setattr(
        subprocess.Popen, "send_signal", lambda process, number: asked.append(process.pid) or send(process, number)
    )
    return asked


def test_a_second_stop_signal_ends_the_drains_and_not_the_programs_that_stop_later(
    run_folder, supervised, tmp_path, asked
):
    engine = replace(patient(tmp_path, "engine", signals=3), needs=("store",))
    supervisor = supervised(program(tmp_path, "store"), engine)
    wait_until(is_in_state(run_folder, "engine", "ready"))
    pids = {name: record["pid"] for name, record in state(run_folder).items()}
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until((log := tmp_path / "engine" / "asked").exists, what="the first signal")
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: log.read_text() == "..", what="the second signal")
    assert asked == [pids["engine"]] * 2
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()), timeout_s=10, what="the end")
    assert asked == [pids["engine"]] * 3 + [pids["store"]]


def test_a_program_that_drains_already_is_not_asked_again_when_all_stop(run_folder, supervised, tmp_path, asked):
    one, two = program(tmp_path, "one"), patient(tmp_path, "two", signals=2)
    wanted = []
    supervisor = supervised(one, two, on_tick=lambda: wanted and supervisor.want(wanted.pop()))
    wait_until(is_in_state(run_folder, "two", "ready"))
    pids = {name: record["pid"] for name, record in state(run_folder).items()}
    wanted.append([one])
    wait_until((tmp_path / "two" / "asked").exists, what="the drain")
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: not Path(f"/proc/{pids['one']}").exists(), what="the end of the other")
    assert asked == [pids["two"], pids["one"]]
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: not Path(f"/proc/{pids['two']}").exists(), timeout_s=10, what="the end")


def test_a_program_that_drains_for_long_gets_a_second_signal_when_all_stop(run_folder, supervised, tmp_path, asked):
    one = replace(patient(tmp_path, "one", signals=2), stop_s=0.2, drain_s=600)
    supervisor = supervised(one)
    wait_until(is_in_state(run_folder, "one", "ready"))
    pid = state(run_folder)["one"]["pid"]
    supervisor._request_stop(signal.SIGTERM, None)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=10, what="the end")
    assert asked == [pid, pid]
