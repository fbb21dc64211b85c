"""Adapters that a replica has before they are asked for: by hints, by rhythm, by pins; and what holds it back."""

import time

import msgspec
import pytest

from core import redis_keys
from core.contracts.replicas import ReplicaStatus
from core.ids import new_id
from core.rendezvous_hash import winner
from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import REPLICA, engine_name, room_of
from tests.fixtures.quota.redis_commands import wait_for_commands

MEMORY, IDLE_S = 6, 5


@pytest.fixture(scope="module")
def module_room(redis_server, tmp_path_factory):
    with room_of(
        redis_server, tmp_path_factory.mktemp("agent"), engine={"slots": 2, "memory-adapters": MEMORY},
        engine_slots=2, engine_memory_adapters=MEMORY, prefetch_evict_idle_s=IDLE_S, prefetch_retry_after_s=0.5,
        prefetch_useful_within_s=3, forecast_visit_gap_s=0.5, forecast_horizon_s=1.5,
    ) as room:  # fmt: skip
        yield room


@pytest.fixture
def room(module_room):
    for held in module_room.truth()["memory"]:  # what another test has used is not in use by this one
        module_room.engine.door("POST", "/unload", {"name": held["name"], "drain_s": 0})
    yield module_room
    assert module_room.agent.process.poll() is None
    assert "Traceback" not in module_room.agent.log.read_text()


def skipped(room, reason: str) -> float:
    return room.agent.metric("tenora_replica_prefetches_skipped_total", f'{{reason="{reason}"}}')


def outcomes(room, outcome: str) -> float:
    return room.agent.metric("tenora_replica_prefetch_outcomes_total", f'{{outcome="{outcome}"}}')


def used(room, name: str, at_s: float | None = None) -> None:
    """As a gateway says it."""
    at_ms = int(1000 * (time.time() if at_s is None else at_s))
    room.client.zadd(redis_keys.adapter_heat("tiny-chat", 16), {name: at_ms})


@pytest.fixture
def another(room):
    """A second replica of the pool, which takes its share of the hints."""
    ghost = ReplicaStatus(
        id="rep_two", url="http://127.0.0.1:9", base_model="tiny-chat", state="ready", boot_id="b", block_tokens=16,
        pages_total=1, pages_free=1, slots=1, running_requests=0, waiting_requests=0, heartbeat_ms=1,
    )  # fmt: skip
    room.client.set(redis_keys.replica(ghost.id), msgspec.json.encode(ghost))
    room.client.zadd(redis_keys.REPLICAS, {ghost.id: 1})
    wait_for_commands(room.client, f"ZRANGE {redis_keys.REPLICAS}")
    yield
    room.client.delete(redis_keys.replica(ghost.id))
    room.client.zrem(redis_keys.REPLICAS, ghost.id)
    wait_for_commands(room.client, f"ZRANGE {redis_keys.REPLICAS}")


def test_a_flip_is_in_memory_before_the_first_request_and_counts_as_useful_once_used(room):
    name, before = engine_name(), outcomes(room, "useful")
    room.hint(name)
    wait_until(lambda: room.in_memory(name), what="the hinted adapter")
    assert room.agent.metric("tenora_replica_prefetches_total", '{reason="flip",tier="store"}') >= 1
    assert not any(line.get("model") == name for line in room.engine.lines())  # nobody asked
    used(room, name)
    wait_until(lambda: outcomes(room, "useful") == before + 1, what="the verdict")
    wasted = outcomes(room, "wasted")
    room.hint(engine_name(), reason="listing")
    wait_until(lambda: outcomes(room, "wasted") == wasted + 1, what="the verdict on one that nobody used")


def test_only_the_replica_that_all_agree_on_acts_unless_another_revision_is_here(room, another):
    adapter, theirs = new_id("ad"), engine_name()
    while winner(theirs, [REPLICA, "rep_two"]) == REPLICA:
        theirs = engine_name()
    ours = engine_name()
    while winner(ours, [REPLICA, "rep_two"]) != REPLICA:
        ours = engine_name()
    elsewhere = skipped(room, "elsewhere")  # forecasts of what other tests have used may add to it
    room.hint(theirs)
    room.hint(ours)
    wait_until(lambda: room.in_memory(ours), what="the hint after it")
    assert skipped(room, "elsewhere") > elsewhere
    assert not room.in_memory(theirs)
    room.ask(engine_name(adapter))
    flipped = engine_name(adapter)
    while winner(flipped, [REPLICA, "rep_two"]) == REPLICA:
        flipped = engine_name(adapter)
    wait_until(lambda: any(adapter in (name or "") for name in room.residency().slots), what="the old revision")
    room.hint(flipped)
    wait_until(lambda: room.in_memory(flipped), what="the flipped adapter")


def test_hints_for_other_models_larger_ranks_and_nonsense_are_passed_over(room):
    wide = engine_name()
    room.client.xadd(redis_keys.PREFETCH_HINTS, {"hint": b"no hint"})
    room.client.xadd(redis_keys.PREFETCH_HINTS, {"other": b"field"})
    room.hint(wide, rank_class=64)
    name = engine_name()
    room.hint(name)
    wait_until(lambda: room.in_memory(name), what="the hint after them")
    assert not room.in_memory(wide)


def test_a_full_memory_of_adapters_in_use_lets_a_prefetch_only_to_the_disk(room):
    names = [engine_name() for _ in range(MEMORY)]
    for name in names:
        room.ask(name)
    hinted = engine_name()

    def on_disk() -> bool:
        for name in names:
            used(room, name)  # and kept in use
        return hinted.partition("@")[2] in room.truth()["disk"]

    assert not on_disk()
    wait_for_commands(room.client, f"ZRANGEBYSCORE {redis_keys.adapter_heat('tiny-chat', 16)}")
    room.hint(hinted)
    wait_until(on_disk, what="the adapter on the disk")
    assert not room.in_memory(hinted)
    assert all(room.in_memory(name) for name in names)


def test_an_adapter_with_a_rhythm_is_there_when_its_time_comes(room):
    name = engine_name()
    forecasts = room.agent.metric("tenora_replica_prefetches_total", '{reason="forecast",tier="store"}')
    next_at = time.time()
    for _ in range(4):  # three gaps show a rhythm
        time.sleep(max(0.0, next_at - time.time()))
        used(room, name, next_at)
        next_at += 3
    assert not room.in_memory(name)  # too early
    wait_until(lambda: room.in_memory(name), timeout_s=next_at - time.time() + 0.3, what="the forecast adapter")
    assert room.agent.metric("tenora_replica_prefetches_total", '{reason="forecast",tier="store"}') == forecasts + 1


def test_pins_are_brought_kept_and_bounded_by_half_of_memory(room):
    pinned = sorted(engine_name() for _ in range(MEMORY))
    for name in pinned:
        room.pin(name)
    room.pin(engine_name(), rank_class=64)
    kept = pinned[: MEMORY // 2]
    wait_until(lambda: all(room.in_memory(name) for name in kept), what="the pinned adapters")
    wait_until(lambda: room.agent.metric("tenora_replica_pins_dropped") == MEMORY - len(kept))
    for _ in range(2 * MEMORY):
        room.ask(engine_name())
    assert all(room.in_memory(name) for name in kept)
    room.publisher.put("pins", kept[0], None)
    wait_until(lambda: room.in_memory(pinned[MEMORY // 2]), what="the next in line")
    for name in pinned:
        room.publisher.put("pins", name, None)
    wait_until(lambda: room.agent.metric("tenora_replica_pinned_adapters") == 0)


def test_a_revoked_adapter_is_neither_prefetched_nor_pinned(room):
    name = engine_name()
    revocation = room.revoke(name)
    wait_until(lambda: room.removed(revocation), what="the receipt")
    room.hint(name)
    room.pin(name)
    after = engine_name()
    room.hint(after)
    wait_until(lambda: room.in_memory(after), what="the hint after it")
    assert not room.in_memory(name)
    assert room.agent.metric("tenora_replica_pinned_adapters") == 0
