"""Which pool serves which rank, which replica runs a canary, and the cost of a pool's slots."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from adapters.base_model_spec import kv_page_bytes, slot_bytes
from control_plane.registry.review.canary_jobs import pools_of
from control_plane.registry.revisions.rank_classes import describe
from core.rank_classes import class_for
from tests.fixtures.uploads.peft_adapters import tiny_base
from tests.unit.control_plane.registry.revocations.test_revocations import status

CLASSES = st.lists(st.integers(1, 512), min_size=1, unique=True).map(sorted)


def replica(name: str, rank_max: int, **changes):
    return msgspec.structs.replace(status(name), rank_max=rank_max, slots=4, **changes)


@given(st.integers(1, 512), CLASSES)
def test_a_revision_goes_to_the_cheapest_class_that_fits_it(rank, classes):
    found = class_for(rank, classes)
    assert found == next((each for each in classes if each >= rank), None)


@given(CLASSES, st.integers(1, 512))
def test_every_rank_belongs_to_one_pool_at_most(classes, rank):
    pools = pools_of([replica(f"r{rank_max}", rank_max) for rank_max in classes])
    asked = [pool.rank_max for pool in pools if pool.rank_above < rank <= pool.rank_max]
    assert asked == [cheapest for cheapest in [class_for(rank, classes)] if cheapest is not None]


def test_only_replicas_that_are_ready_run_canaries():
    pools = pools_of(
        [replica("a", 8), replica("b", 8), replica("c", 8, state="starting"), replica("d", 16, base_model="x")]
    )
    assert [(pool.base_model, pool.rank_max, pool.rank_above, pool.replicas) for pool in pools] == [
        ("tiny", 8, 0, 2),
        ("x", 16, 0, 1),
    ]


def test_a_slot_reserves_the_full_rank_of_every_linear_module():
    base = tiny_base(layers=1, hidden=10, kv=4, intermediate=6)
    widths = (10 + 10) + (10 + 4) + (10 + 4) + (10 + 10) + (10 + 6) + (10 + 6) + (6 + 10)
    assert slot_bytes(base, 16) == widths * 16 * 2
    assert kv_page_bytes(base) == (4 + 4) * 2 * 16


def test_a_class_shows_what_its_live_slots_cost_in_kv_pages():
    base = msgspec.structs.replace(tiny_base(), rank_max=16, rank_classes=(4, 16))
    low, high = describe(base, [replica("a", 16), replica("b", 16)], {4: 7})
    assert (low.rank, low.replicas, low.slots, low.slots_bytes, low.adapters) == (4, 0, 0, 0, 7)
    assert (high.rank, high.replicas, high.slots, high.adapters) == (16, 2, 8, 0)
    assert high.slots_bytes == 8 * slot_bytes(base, 16)
    assert (high.kv_pages_of_slots - 1) * kv_page_bytes(base) < high.slots_bytes
    assert high.slots_bytes <= high.kv_pages_of_slots * kv_page_bytes(base)


def test_replicas_of_an_unregistered_rank_are_shown_as_such():
    views = describe(tiny_base(), [replica("a", 8)], {})
    assert [(view.rank, view.registered) for view in views] == [(8, False), (512, True)]
