"""Storage counts byte-seconds and pins slot-milliseconds, to the second and once."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from billing.resources.use import HOUR, PinnedSlot, ResourceOwner, StoredRevision, pins_in, storage_in

START = datetime(2026, 11, 1, tzinfo=UTC)


def owner(tenant: str = "tn_1", adapter: str = "ad_1") -> ResourceOwner:
    return ResourceOwner(tenant_id=tenant, adapter_id=adapter, base_model="base", rank_class=16)


def stored(begins_s: float, ends_s: float | None, *, number: int = 1, of: ResourceOwner | None = None, **changes):
    values = {
        "owner": of or owner(),
        "revision_id": f"rev_{number}",
        "digest": "d1",
        "stored_bytes": 1_000,
        "begins": START + timedelta(seconds=begins_s),
        "ends": None if ends_s is None else START + timedelta(seconds=ends_s),
    }
    return StoredRevision(**(values | changes))


def units(uses) -> dict[str, int]:
    return {use.owner.adapter_id: use.units for use in uses}


def test_a_revision_counts_from_its_acceptance_until_its_deletion_to_the_second():
    assert units(storage_in(START, [stored(-99, None)])) == {"ad_1": 3_600_000}
    assert units(storage_in(START, [stored(10.9, 20.1)])) == {"ad_1": 10_000}
    assert storage_in(START, [stored(3_600, None)]) == []
    assert storage_in(START, [stored(-99, 0)]) == []
    assert storage_in(START, [stored(-20, -10)]) == []


def test_the_same_digest_counts_once_for_a_tenant_and_passes_to_the_next_adapter_that_has_it():
    copies = [stored(0, 100), stored(50, 300, number=2, of=owner(adapter="ad_2"))]
    assert units(storage_in(START, copies)) == {"ad_1": 100_000, "ad_2": 200_000}
    assert storage_in(START, copies[::-1]) == storage_in(START, copies)


def test_the_same_digest_counts_for_each_tenant_and_other_digests_count_too():
    uses = storage_in(
        START, [stored(0, 10), stored(0, 10, of=owner("tn_2")), stored(0, 10, number=2, digest="d2", stored_bytes=7)]
    )
    assert {use.owner.tenant_id: use.units for use in uses} == {"tn_1": 10_070, "tn_2": 10_000}


INTERVALS = st.tuples(st.integers(-5_000_000, 20_000_000), st.none() | st.integers(0, 20_000_000))


@given(st.lists(INTERVALS, max_size=5), st.randoms())
def test_the_hours_of_storage_add_up_to_its_whole_time_in_any_order(given_ms, random):
    revisions = [
        stored(begins / 1_000, None if lasts is None else (begins + lasts) / 1_000, number=number)
        for number, (begins, lasts) in enumerate(given_ms)
    ]
    seconds = set()
    for begins, lasts in given_ms:
        ends = 18_000 if lasts is None else min(18_000, (begins + lasts) // 1_000)
        seconds |= set(range(max(0, begins // 1_000), ends))
    random.shuffle(revisions)
    hours = [use.units for number in range(5) for use in storage_in(START + number * HOUR, revisions)]
    assert sum(hours) == 1_000 * len(seconds)


@given(st.lists(INTERVALS, max_size=5), st.integers(1, 3_599_999))
def test_the_parts_of_an_hour_of_pins_add_up(given_ms, border_ms):
    pins = [
        PinnedSlot(
            owner=owner(),
            begins=START + timedelta(milliseconds=begins),
            ends=None if lasts is None else START + timedelta(milliseconds=begins + lasts),
        )
        for begins, lasts in given_ms
    ]
    border, end = START + timedelta(milliseconds=border_ms), START + HOUR
    parts = [use.units for use in [*pins_in(START, border, pins), *pins_in(border, end, pins)]]
    assert sum(parts) == sum(use.units for use in pins_in(START, end, pins))


def test_two_pins_of_one_adapter_take_two_slots():
    pins = [PinnedSlot(owner=owner(), begins=START, ends=None) for _ in range(2)]
    assert units(pins_in(START, START + HOUR, pins)) == {"ad_1": 7_200_000}
