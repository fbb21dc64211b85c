"""Where a test run spends processor time. `make test-profile` loads this plugin, which prints seconds by file and by
fixture.

It counts the pytest processes and the children that they have waited for, not servers that live on, such as Postgres.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROWS = 40
_seconds: dict[str, Counter[str]] = {"file": Counter(), "fixture": Counter(), "other": Counter()}
_in_fixtures: list[float] = []  # for each fixture that is being set up, the time that fixtures inside it took


def _now_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    result = yield
    _seconds["other"]["imports and collection"] += _now_s()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start_s = _now_s()
    result = yield
    _seconds["file"][item.location[0]] += _now_s() - start_s
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Iterator[None]:
    start_s = _now_s()
    _in_fixtures.append(0)
    try:
        return (yield)
    finally:
        took_s = _now_s() - start_s
        inside_s = _in_fixtures.pop()
        if _in_fixtures:
            _in_fixtures[-1] += took_s
        _seconds["fixture"][f"{fixturedef.argname} ({fixturedef.baseid or 'tests'})"] += took_s - inside_s


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of ``pytest -n`` hands its seconds to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = json.dumps(_seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    for kind, seconds in json.loads(getattr(node, "workeroutput", {}).get("cpu_seconds", "{}")).items():
        _seconds[kind].update(seconds)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    whole_s = sum(_seconds["file"].values()) + sum(_seconds["other"].values())
    terminalreporter.section(f"processor time: {whole_s:.0f} s")
    for kind, seconds in _seconds.items():
        for name, taken_s in seconds.most_common(_ROWS):
            terminalreporter.write_line(f"{taken_s:8.1f} s  {kind}  {name}")
    if out := os.environ.get("TENORA_TEST_PROFILE"):
        Path(out).write_text(json.dumps(_seconds))
