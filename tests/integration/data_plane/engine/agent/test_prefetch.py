"""Adapters that a replica prefetches: because of hints and pins; and what prevents a prefetch."""

import msgspec
import pytest

from core import redis_keys
from core.clock import now_ms
from core.ids import new_id
from core.rendezvous_hash import winner
from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import REPLICA, engine_name, running_agent
from tests.fixtures.gateway.requests import replica_status
from tests.fixtures.quota.redis_commands import wait_for_commands

MEMORY, IDLE_S = 6, 60


@pytest.fixture(scope="module")
def module_harness(redis_server, tmp_path_factory):
    with running_agent(
        redis_server, tmp_path_factory.mktemp("agent"), engine={"slots": 2, "memory-adapters": MEMORY},
        engine_slots=2, engine_memory_adapters=MEMORY, prefetch_evict_idle_s=IDLE_S, prefetch_retry_after_s=0.5,
        prefetch_useful_within_s=3,
    ) as harness:  # fmt: skip
        yield harness


@pytest.fixture
def harness(module_harness):
    for held in module_harness.inventory()["memory"]:  # adapters of other tests are not in use by this one
        module_harness.engine.control("POST", "/unload", {"name": held["name"], "drain_s": 0})
    yield module_harness
    assert module_harness.agent.process.poll() is None
    assert "Traceback" not in module_harness.agent.log.read_text()


def skipped(harness, reason: str) -> float:
    return harness.agent.metric("tenora_replica_prefetches_skipped_total", f'{{reason="{reason}"}}')


def outcomes(harness, outcome: str) -> float:
    return harness.agent.metric("tenora_replica_prefetch_outcomes_total", f'{{outcome="{outcome}"}}')


@pytest.fixture
def another(harness):
    """A second replica of the pool, which gets its share of the hints."""
    ghost = replica_status("rep_two", base_model="tiny-chat")
    harness.client.set(redis_keys.replica(ghost.id), msgspec.json.encode(ghost))
    harness.client.zadd(redis_keys.REPLICAS, {ghost.id: now_ms()})
    wait_for_commands(harness.client, f"ZRANGE {redis_keys.REPLICAS}")
    yield
    harness.client.delete(redis_keys.replica(ghost.id))
    harness.client.zrem(redis_keys.REPLICAS, ghost.id)
    wait_for_commands(harness.client, f"ZRANGE {redis_keys.REPLICAS}")


def test_a_hinted_adapter_is_in_memory_before_its_first_request_and_counts_as_useful_once_used(harness):
    name, before = engine_name(), outcomes(harness, "useful")
    harness.hint(name)
    wait_until(lambda: harness.in_memory(name), what="the hinted adapter")
    assert harness.agent.metric("tenora_replica_prefetches_total", '{reason="flip",tier="store"}') >= 1
    assert not any(line.get("model") == name for line in harness.engine.lines())  # no request asked for it
    harness.ask(name)
    wait_until(lambda: outcomes(harness, "useful") == before + 1, what="the outcome")
    wasted = outcomes(harness, "wasted")
    harness.hint(engine_name(), reason="listing")
    wait_until(lambda: outcomes(harness, "wasted") == wasted + 1, what="the outcome of an unused one")


def test_only_the_agreed_replica_prefetches_unless_this_one_has_another_revision(harness, another):
    adapter, theirs = new_id("ad"), engine_name()
    while winner(theirs, [REPLICA, "rep_two"]) == REPLICA:
        theirs = engine_name()
    ours = engine_name()
    while winner(ours, [REPLICA, "rep_two"]) != REPLICA:
        ours = engine_name()
    elsewhere = skipped(harness, "elsewhere")
    harness.hint(theirs)
    harness.hint(ours)
    wait_until(lambda: harness.in_memory(ours), what="the hint after it")
    assert skipped(harness, "elsewhere") == elsewhere + 1
    assert not harness.in_memory(theirs)
    harness.ask(engine_name(adapter))
    flipped = engine_name(adapter)
    while winner(flipped, [REPLICA, "rep_two"]) == REPLICA:
        flipped = engine_name(adapter)
    wait_until(lambda: any(adapter in (name or "") for name in harness.residency().slots), what="the old revision")
    harness.hint(flipped)
    wait_until(lambda: harness.in_memory(flipped), what="the flipped adapter")


def test_hints_for_other_models_larger_ranks_and_invalid_hints_are_skipped(harness):
    wide = engine_name()
    harness.client.xadd(redis_keys.PREFETCH_HINTS, {"hint": b"no hint"})
    harness.client.xadd(redis_keys.PREFETCH_HINTS, {"other": b"field"})
    harness.hint(wide, rank_class=64)
    name = engine_name()
    harness.hint(name)
    wait_until(lambda: harness.in_memory(name), what="the hint after them")
    assert not harness.in_memory(wide)


def test_a_prefetch_beside_a_memory_full_of_used_adapters_goes_only_to_the_disk(harness):
    names = [engine_name() for _ in range(MEMORY)]
    for name in names:
        harness.ask(name)
    hinted = engine_name()
    harness.hint(hinted)
    wait_until(lambda: hinted.partition("@")[2] in harness.inventory()["disk"], what="the adapter on the disk")
    assert not harness.in_memory(hinted)
    assert all(harness.in_memory(name) for name in names)


def test_pins_are_loaded_kept_and_bounded_by_half_of_memory(harness):
    pinned = sorted(engine_name() for _ in range(MEMORY))
    for name in pinned:
        harness.pin(name)
    harness.pin(engine_name(), rank_class=64)
    kept = pinned[: MEMORY // 2]
    wait_until(lambda: all(harness.in_memory(name) for name in kept), what="the pinned adapters")
    wait_until(lambda: harness.agent.metric("tenora_replica_pins_dropped") == MEMORY - len(kept))
    for _ in range(2 * MEMORY):
        harness.ask(engine_name())
    assert all(harness.in_memory(name) for name in kept)
    harness.publisher.put("pins", kept[0], None)
    wait_until(lambda: harness.in_memory(pinned[MEMORY // 2]), what="the next in line")
    for name in pinned:
        harness.publisher.put("pins", name, None)
    wait_until(lambda: harness.agent.metric("tenora_replica_pinned_adapters") == 0)


def test_a_revoked_adapter_is_neither_prefetched_nor_pinned(harness):
    name = engine_name()
    revocation = harness.revoke(name)
    wait_until(lambda: harness.removed(revocation), what="the receipt")
    harness.hint(name)
    harness.pin(name)
    after = engine_name()
    harness.hint(after)
    wait_until(lambda: harness.in_memory(after), what="the hint after it")
    assert not harness.in_memory(name)
    assert harness.agent.metric("tenora_replica_pinned_adapters") == 0
