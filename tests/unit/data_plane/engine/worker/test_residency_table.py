"""Which adapters are evicted from host memory, which are protected, and what a reader of the table sees."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from data_plane.engine.residency import LOADS_MAX
from data_plane.engine.worker.residency_table import FAILED_MAX, ResidencyTable, choose_victim

NAMES = st.sampled_from("abcdefgh")
SETS = st.frozensets(NAMES)


def table() -> ResidencyTable[str]:
    return ResidencyTable(slots=2)


@given(st.lists(NAMES, unique=True), SETS, SETS, SETS, st.booleans())
def test_the_victim_is_the_oldest_of_the_least_protected(memory, used_now, held, pinned, must):
    worth = {name: 2 if name in held else int(name in pinned) for name in memory if name not in used_now}
    allowed = [name for name in worth if must or worth[name] == 0]
    expected = min(allowed, key=lambda name: (worth[name], memory.index(name)), default=None)
    assert choose_victim(memory, used_now=used_now, acquired=held, pinned=pinned, must=must) == expected


def test_acquiring_an_adapter_returns_its_tier():
    tiers = table()
    tiers.record_tables(slots=("a", None), memory=("a", "b"))
    assert (tiers.acquire("a"), tiers.acquire("b"), tiers.acquire("c")) == ("slot", "memory", None)
    assert tiers.stage("c", "weights")
    assert tiers.acquire("c") == "memory"


def test_an_adapter_put_into_a_slot_becomes_the_most_recently_used_and_the_rest_keeps_its_order():
    tiers = table()
    tiers.record_tables(slots=(None, None), memory=("a", "b", "c"))
    tiers.record_tables(slots=("a", None), used="a")
    tiers.record_tables(slots=("a", "elsewhere"), used="elsewhere")
    assert tiers.snapshot().memory == ("b", "c", "a")


def test_staged_weights_are_taken_once_and_kept_only_while_needed():
    tiers = table()
    assert not tiers.stage("a", "weights"), "no request needs it"
    tiers.acquire("a")
    assert tiers.stage("a", "weights")
    assert (tiers.take_staged("a"), tiers.take_staged("a")) == ("weights", None)
    assert tiers.stage("a", "weights")
    tiers.release("a")
    tiers.evict_unwanted(frozenset())
    assert tiers.staged() == ()


def test_a_released_adapter_stays_for_the_step_that_may_still_use_it():
    tiers = table()
    for name in ("a", "b"):
        tiers.acquire(name)
        tiers.stage(name, "weights")
    tiers.release("a")
    tiers.evict_unwanted({"a"})
    assert tiers.staged() == ("a", "b")
    assert tiers.take_staged("a") == "weights"
    tiers.release("b")
    tiers.evict_unwanted({"a"})
    assert tiers.staged() == ()


def test_without_a_step_a_released_adapter_makes_room_for_a_needed_one():
    tiers = table()
    for name in ("a", "b"):
        tiers.acquire(name)
        tiers.stage(name, "weights")
    tiers.release("a")
    tiers.acquire("c")
    assert tiers.stage("c", "weights")
    assert tiers.staged() == ("b", "c")


def test_after_an_interrupted_connection_the_set_of_acquired_adapters_is_replaced():
    tiers = table()
    for name in ("a", "b"):
        tiers.acquire(name)
        tiers.stage(name, "weights")
    tiers.replace_acquired(["b", "c"])
    assert tiers.staged() == ("b",)
    assert tiers.stage("c", "weights")
    assert not tiers.stage("a", "weights")


def test_a_pinned_adapter_stays_staged_without_requests():
    tiers = table()
    assert tiers.pin(["a", "b"]) == ["a", "b"]
    tiers.stage("a", "weights")
    tiers.release("a")
    assert tiers.pin(["a", "b"]) == ["b"]


def test_a_revoked_adapter_is_not_staged_even_for_a_running_request():
    tiers = table()
    tiers.acquire("a")
    tiers.set_revoked(["a"])
    assert tiers.is_revoked("a")
    assert not tiers.stage("a", "weights")
    tiers.set_revoked([])
    assert tiers.stage("a", "weights")


def test_a_failed_adapter_is_in_no_tier_until_it_is_evicted():
    tiers = table()
    tiers.record_tables(slots=("a", None), memory=("a",))
    tiers.record_failure("a")
    assert tiers.has_failed("a")
    assert tiers.acquire("a") is None
    tiers.evict("a")
    assert tiers.acquire("a") == "slot"
    for number in range(FAILED_MAX + 5):
        tiers.record_failure(str(number))
    assert len(tiers.snapshot().failed) == FAILED_MAX


def test_loads_are_numbered_without_gaps_and_only_the_newest_are_kept():
    tiers = table()
    for number in range(LOADS_MAX + 10):
        tiers.record_load("a", "slot", number / 3, in_step=True)
    loads = tiers.snapshot().loads
    assert [load.seq for load in loads] == list(range(11, LOADS_MAX + 11))


def test_evictions_add_up():
    tiers = table()
    tiers.record_tables(slots=(None, None), memory=(), slot_evictions=1, memory_evictions=2)
    tiers.record_tables(slots=(None, None), memory=(), slot_evictions=1)
    assert (tiers.snapshot().slot_evictions, tiers.snapshot().memory_evictions) == (2, 2)


def test_a_writer_wakes_for_a_change_and_not_without_one():
    tiers = table()
    assert not tiers.wait_for_change(tiers.version, 0.01)
    seen = tiers.version
    woken = threading.Thread(target=tiers.wait_for_change, args=(seen, 20))
    woken.start()
    tiers.pin(["a"])
    woken.join(10)
    assert not woken.is_alive()
    assert tiers.wait_for_change(seen, 0)
