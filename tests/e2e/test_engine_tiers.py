"""Adapters in a real engine with fewer slots than room in host memory, and less room than adapters: loaded,
alternated, lost, pinned, evicted. The tests ask the engine itself.

Texts are compared word by word only where both came from requests that no other ran beside: the engine then computes
the same to the last bit, on any CPU. Answers of a batch are judged by ``isolation_judge``.
"""

import shutil
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from data_plane.engine.residency import LoadRecord
from tests.conftest import wait_until
from tests.e2e.conftest import MEMORY
from tests.fixtures.engine.real_engine import BASE, RealEngine, events_of

pytestmark = [pytest.mark.e2e, pytest.mark.soak]
NOTHING_LEFT = {"in_slots": [], "in_memory": [], "on_disk": [], "holders": []}


@pytest.fixture(scope="module")
def names(models) -> list[str]:
    """More adapters than fit host memory."""
    return models[1 : MEMORY + 4]


def last_load(engine: RealEngine) -> int:
    """The number of the newest load; other tests' are older."""
    return max((load.seq for load in engine.table().loads), default=0)


def loads_since(engine: RealEngine, before: int) -> list[LoadRecord]:
    return [load for load in engine.table().loads if load.seq > before]


def test_a_load_costs_the_step_less_than_it_costs_beside_it(engine, names):
    """Reading, checking and merging happen beside the steps; what is left in the step is the copy into the slot."""
    before = last_load(engine)
    for name in names:
        engine.text(name)
    loads = loads_since(engine, before)
    beside = [load.ms for load in loads if load.kind == "memory" and not load.in_step]
    stalls = [load.ms for load in loads if load.kind == "slot" and load.in_step]
    assert not [load for load in loads if load.kind == "memory" and load.in_step], "a step has read the disk"
    print(
        f"\nbeside the steps {statistics.median(beside):.1f} ms, in a step {statistics.median(stalls):.1f} ms; "
        f"in the step before: {statistics.median(beside) + statistics.median(stalls):.1f} ms"
    )
    assert statistics.median(stalls) < statistics.median(beside)


def test_a_stream_reports_the_tier_of_its_adapter_and_the_load_time(engine):
    name = engine.new_adapter(100)
    reports = [events_of(engine.complete(name, stream=True)) for _ in range(2)]
    assert [report["tier"] for _, report in reports] == ["store", "slot"]
    assert reports[0][1]["load_ms"] > 0
    assert reports[0][1]["stall_ms"] > 0
    assert reports[1][1]["stall_ms"] == 0, "a stall is reported once"
    assert all(event["choices"] for event, *_ in [events for events, _ in reports])


def test_the_cache_folder_deleted_under_traffic_is_filled_again_without_errors(engine, names):
    answers: list[tuple[int, str]] = []
    stop = threading.Event()

    def traffic(first: int) -> None:
        turn = first
        while not stop.is_set():
            answer = engine.complete(names[turn % len(names)], max_tokens=2)
            answers.append((answer.status_code, "" if answer.status_code == 200 else answer.text))
            turn += 1

    with ThreadPoolExecutor(3) as callers:
        running = [callers.submit(traffic, first) for first in range(3)]
        try:
            for answered in (6, 12, 18, 30):
                wait_until(lambda most=answered: len(answers) >= most, timeout_s=60, what="more answers")
                if answered < 30:
                    shutil.rmtree(engine.cache_dir, ignore_errors=True)
        finally:
            stop.set()
    assert [each.exception() for each in running] == [None] * 3
    assert [each for each in answers if each[0] != 200] == []
    assert engine.client.get("/health").status_code == 200
    assert engine.text(BASE)


def test_truncated_files_are_noticed_before_the_engine_maps_them(engine, names):
    name = engine.new_adapter(101)
    before = engine.text(name)
    for other in names[:MEMORY]:
        engine.text(other)
    assert name not in engine.table().in_memory
    weights = engine.cache_dir / name.rpartition("@")[2] / "adapter_model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(4096)
    assert engine.text(name) == before


def test_names_and_files_of_adapters_in_no_tier_are_released(engine, names):
    for name in names:
        engine.text(name)

    def only_what_is_in_memory():
        truth = engine.residency()
        held = {
            digest
            for leases in (engine.cache_dir / ".leases").iterdir()
            for digest in leases.read_text().replace("\0", " ").split()
        }
        in_memory = {each["name"] for each in truth["memory"]}
        return set(truth["names"]) == in_memory and held == {name.rpartition("@")[2] for name in in_memory}

    assert wait_until(only_what_is_in_memory, what="the front end to forget")


def test_pinned_adapters_stay_in_host_memory_while_others_come_and_go(engine, names):
    pinned = names[:2]
    for name in pinned:
        engine.client.post("/tenora/v1/prefetch", json={"name": name, "tier": "memory"}).raise_for_status()
    answer = engine.client.put("/tenora/v1/pins", json={"names": pinned})
    assert answer.json() == {"missing": []}
    try:
        for name in names[2:]:
            engine.text(name)
        truth = engine.residency()
        assert set(pinned) <= {each["name"] for each in truth["memory"]}
        assert not set(pinned) & {slot["name"] for slot in truth["slots"]}, "a pin takes no slot"
    finally:
        engine.client.put("/tenora/v1/pins", json={"names": []}).raise_for_status()


def test_an_unloaded_adapter_is_in_none_of_the_engines_tensors_and_stays_refused(engine, names):
    gone, other = engine.new_adapter(103), names[0]
    before = engine.text(gone)
    engine.text(other)
    assert gone in [slot["name"] for slot in engine.residency()["slots"]]
    assert engine.unload(gone) == {"drained": 0, "aborted": 0} | NOTHING_LEFT
    truth = engine.residency()
    assert _nowhere(engine, gone, truth)
    assert all(slot["zeroed"] for slot in truth["slots"] if slot["name"] is None)
    assert gone.partition("@")[0] in truth["revoked"]
    refused = engine.complete(gone)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "adapter_revoked")
    assert engine.client.post("/tenora/v1/prefetch", json={"name": gone}).status_code == 404
    assert engine.unload(gone)["in_memory"] == []  # again
    engine.refuse()  # a suspended adapter that is served again
    assert engine.text(gone) == before


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_an_unload_lets_requests_finish_for_a_while_and_then_ends_them(engine, kind):
    name = engine.new_adapter(104)
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    body = {"model": name, "max_tokens": 400, "min_tokens": 400, "stream": True, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if kind == "chat" else {"prompt": "hi"}
    began, lines = threading.Event(), []

    def stream() -> None:
        headers = {"x-tenora-adapter": name, "x-request-id": f"req-{kind}"}
        with engine.client.stream("POST", path, json=body, headers=headers) as response:
            for line in response.iter_lines():
                lines.append(line)
                began.set()

    with ThreadPoolExecutor(1) as callers:
        running = callers.submit(stream)
        assert began.wait(30)
        result = engine.unload(name, drain_s=0.3)
        running.result(20)
    assert result == {"drained": 0, "aborted": 1} | NOTHING_LEFT
    assert "data: [DONE]" in lines, "an ended request ends in the ordinary way"
    assert _nowhere(engine, name, engine.residency())
    engine.refuse()


def test_an_adapter_lost_in_a_step_fails_its_own_requests_and_never_answers_as_the_base(engine, names):
    lost, prompt = engine.new_adapter(105, scale=0.1), "A prompt of its own"
    own, base = engine.text(lost, prompt), engine.text(BASE, prompt)
    assert own != base
    engine.unload(lost)
    engine.refuse()
    marker = engine.settings.run_dir / "lost"
    marker.write_text(lost)
    try:
        with ThreadPoolExecutor(4) as callers:
            others = [callers.submit(engine.text, name) for name in (names[0], BASE, names[0])]
            failed = engine.complete(lost, prompt)
            assert [each.result() for each in others]
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "adapter_failed")
    finally:
        marker.unlink()
    assert engine.text(lost, prompt) == own, "nothing cached of the time when it was not itself"
    assert engine.text(BASE, prompt) == base
    assert engine.table().failed == ()


def _nowhere(engine: RealEngine, name: str, truth: dict) -> bool:
    above = [slot["name"] for slot in truth["slots"]] + [each["name"] for each in truth["memory"]]
    return (
        name not in above + truth["staged"] + truth["names"]
        and name.rpartition("@")[2] not in truth["disk"]
        and not (engine.cache_dir / name.rpartition("@")[2]).exists()
    )
