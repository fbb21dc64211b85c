"""Shares of a replica's cost, with the numbers of the scenarios. The replica costs 1,000 nanodollars a millisecond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.costs.allocation import PLATFORM, CostOwner, OwnerWork, ReplicaSlice, allocate
from billing.costs.rates import MS_PER_HOUR, DatedRate, slot_charge
from billing.costs.replica_time import StateSpan, charges
from billing.costs.step_model import StepWeights, StepWork, flags_of
from core.periods import EPOCH

RATE = 3_600_000_000
RATES = [
    DatedRate(base_model="m", rank_max=16, effective_from=EPOCH, nanos_per_hour=RATE, slot_nanos_per_hour=360_000_000)
]
WEIGHTS = StepWeights(prefill_token_ps=100_000_000, decode_token_ps=2_000_000_000, context_token_ps=10_000)
A, B, C = (CostOwner(tenant_id=f"tn_{name}", adapter_id=f"ad_{name}", plan_id="pl_1") for name in "abc")


def busy(nanos: int) -> dict[str, int]:
    return {"busy": nanos * MS_PER_HOUR}


def rows(found, kind: str | None = None) -> dict[str, int]:
    """Nanodollars by tenant, or by kind for the platform's rows."""
    return {row.owner.tenant_id or row.kind: row.nanos for row in found.rows if kind in (None, row.kind)}


def allocated(owners, *, busy_ms: int, work: StepWork | None = None, **changes):
    work = work or StepWork(
        prefill_tokens=sum(used.prefill_tokens + used.aborted_prefill_tokens for used in owners),
        decode_tokens=sum(used.decode_tokens for used in owners),
        context_tokens=sum(used.context_tokens for used in owners),
        sequence_steps=sum(used.sequence_steps for used in owners),
    )
    values = {"charges": busy(busy_ms * 1_000), "busy_ms": busy_ms, "work": work, "owners": owners}
    return allocate(ReplicaSlice(**(values | changes)), WEIGHTS)


@pytest.mark.scenario(168)
def test_the_odd_nanodollar_of_two_alike_goes_to_the_smaller_id():
    alike = [OwnerWork(owner=owner, decode_tokens=10) for owner in (B, A)]
    for owners in (alike, alike[::-1]):
        found = allocated(owners, busy_ms=30_000, charges=busy(30_000_001))
        assert rows(found) == {"tn_a": 15_000_001, "tn_b": 15_000_000}


@pytest.mark.scenario(169)
def test_prefill_decode_and_context_share_the_busy_time_as_predicted():
    owners = [
        OwnerWork(owner=A, prefill_tokens=10_000),
        OwnerWork(owner=B, decode_tokens=500, context_tokens=500 * 2_000),
    ]
    found = allocated(owners, busy_ms=2_010)
    assert rows(found) == {"tn_a": 1_000_000, "tn_b": 1_010_000}
    assert found.ratio_ppm == 1_000_000


@pytest.mark.scenario(170)
def test_busy_time_twice_the_prediction_is_shared_alike_and_flagged():
    owners = [
        OwnerWork(owner=A, prefill_tokens=10_000),
        OwnerWork(owner=B, decode_tokens=500, context_tokens=500 * 2_000),
    ]
    found = allocated(owners, busy_ms=4_020)
    assert rows(found) == {"tn_a": 2_000_000, "tn_b": 2_020_000}
    assert found.ratio_ppm == 500_000
    assert flags_of(0, found.ratio_ppm) == ("predicted_over_measured",)


@pytest.mark.scenario(172)
def test_a_load_stall_is_paid_by_the_adapter_that_caused_it():
    owners = [
        OwnerWork(owner=A, prefill_tokens=10_000),
        OwnerWork(owner=B, decode_tokens=500),
        OwnerWork(owner=C, stall_ms=400),
    ]
    found = allocated(owners, busy_ms=2_400, stall_ms=400)
    assert rows(found) == {"tn_a": 1_000_000, "tn_b": 1_000_000, "tn_c": 400_000}
    assert rows(found, "adapter_load") == {"tn_c": 400_000}
    assert found.ratio_ppm == 1_000_000


def test_a_stall_that_no_usage_claims_is_shown_as_unclaimed():
    found = allocated([OwnerWork(owner=A, decode_tokens=500)], busy_ms=1_400, stall_ms=400)
    assert rows(found) == {"tn_a": 1_000_000, "unclaimed": 400_000}


def test_more_claimed_stall_than_busy_time_shrinks_all_stalls_alike():
    owners = [OwnerWork(owner=A, stall_ms=300), OwnerWork(owner=B, stall_ms=100)]
    assert rows(allocated(owners, busy_ms=200)) == {"tn_a": 150_000, "tn_b": 50_000}


@pytest.mark.scenario(174)
def test_start_drain_and_silence_are_rows_that_add_up_with_the_rest():
    spans = [
        StateSpan(start_ms=0, end_ms=45_000, state="starting"),
        StateSpan(start_ms=45_000, end_ms=105_000, state="ready", busy_ms=20_000),
        StateSpan(start_ms=105_000, end_ms=115_000, state="draining"),
        StateSpan(start_ms=115_000, end_ms=137_500, state="lost"),
    ]
    found = allocated([OwnerWork(owner=A, decode_tokens=9)], busy_ms=20_000, charges=charges(spans, RATES))
    assert rows(found) == {
        "starting": 45_000_000,
        "tn_a": 20_000_000,
        "idle": 40_000_000,
        "draining": 10_000_000,
        "lost": 22_500_000,
    }
    assert found.total_nanos == 137_500 * 1_000


@pytest.mark.scenario(176)
def test_probes_are_the_platforms_and_an_aborted_prompt_is_its_tenants():
    probes = OwnerWork(owner=PLATFORM, prefill_tokens=1_000, decode_tokens=50, sequence_steps=100)
    work = StepWork(prefill_tokens=31_000, decode_tokens=50, sequence_steps=100)
    found = allocated([OwnerWork(owner=A, aborted_prefill_tokens=30_000)], busy_ms=3_200, work=work, probes=probes)
    assert rows(found, "aborted_prefill") == {"tn_a": 3_000_000}
    assert rows(found, "platform") == {"platform": 200_000}
    assert found.total_nanos == 3_200_000


def test_work_that_no_usage_claims_is_a_row():
    work = StepWork(prefill_tokens=10_000, decode_tokens=500)
    found = allocated([OwnerWork(owner=A, decode_tokens=500)], busy_ms=2_000, work=work)
    assert rows(found) == {"tn_a": 1_000_000, "unclaimed": 1_000_000}


def test_busy_time_without_any_known_work_is_unclaimed():
    assert rows(allocated([], busy_ms=70)) == {"unclaimed": 70_000}


def test_the_fixed_part_is_shared_by_sequence_steps_and_the_adapters_part_by_those_with_adapters():
    base = CostOwner(tenant_id="tn_d", plan_id="pl_1")
    weights = StepWeights(fixed_ps=3_000_000_000, adapter_ps=1_000_000_000)
    owners = [OwnerWork(owner=A, sequence_steps=100), OwnerWork(owner=base, sequence_steps=200)]
    work = StepWork(steps=200, sequence_steps=300, adapter_steps=100)
    slice_ = ReplicaSlice(charges=busy(700_000), busy_ms=700, work=work, owners=owners)
    assert rows(allocate(slice_, weights)) == {"tn_a": 300_000, "tn_d": 400_000}


@pytest.mark.scenario(177)
@pytest.mark.parametrize(
    ("idle_ms", "pinned", "idle"), [(60_000, 12_000_000, 48_000_000), (12_000, 12_000_000, 0), (5_000, 5_000_000, 0)]
)
def test_pinned_slots_cost_their_declared_rate_out_of_idle_and_never_more_than_idle(idle_ms, pinned, idle):
    declared = slot_charge(RATES, 0, 60_000, slots=2)
    found = allocated([], busy_ms=0, charges={"idle": idle_ms * RATE}, pins={A: declared})
    assert rows(found) == {"tn_a": pinned} | ({"idle": idle} if idle else {})


some_owner = st.sampled_from([A, B, C, CostOwner(tenant_id="tn_d", plan_id="pl_2")])
amounts = st.integers(0, 10**6)


@st.composite
def slices(draw):
    owners = [
        OwnerWork(
            owner=owner,
            prefill_tokens=draw(amounts),
            aborted_prefill_tokens=draw(amounts),
            decode_tokens=draw(amounts),
            context_tokens=draw(amounts),
            sequence_steps=draw(amounts),
            stall_ms=draw(st.integers(0, 500)),
        )
        for owner in draw(st.lists(some_owner, unique=True))
    ]
    busy_ms = draw(st.integers(0, 10_000))
    charged = {state: draw(st.integers(0, 10**14)) for state in ("starting", "idle", "draining", "lost")}
    charged["busy"] = busy_ms * draw(st.integers(1, 10**11))
    work = StepWork(**{name: draw(amounts) for name in StepWork.__struct_fields__})
    return ReplicaSlice(
        charges=charged,
        busy_ms=busy_ms,
        stall_ms=draw(st.integers(0, busy_ms)),
        work=work,
        probes=OwnerWork(owner=PLATFORM, prefill_tokens=draw(amounts)),
        owners=owners,
        pins=draw(st.dictionaries(some_owner, st.integers(0, 10**14))),
    )


weights = st.builds(StepWeights, **dict.fromkeys(StepWeights.__struct_fields__, st.integers(0, 10**10)))


@given(slices(), weights, st.integers(0, MS_PER_HOUR - 1))
def test_the_rows_add_up_to_rate_times_time(given_slice, weights, carry):
    found = allocate(given_slice, weights, carry=carry)
    assert found.total_nanos * MS_PER_HOUR + found.carry == sum(given_slice.charges.values()) + carry
    assert 0 <= found.carry < MS_PER_HOUR
    assert all(row.nanos > 0 for row in found.rows)


@pytest.mark.scenario(178)
@given(slices(), weights)
def test_a_tenant_without_usage_and_pins_has_no_row(given_slice, weights):
    there = {used.owner for used in given_slice.owners} | given_slice.pins.keys()
    assert {row.owner for row in allocate(given_slice, weights).rows} <= there | {PLATFORM}


@pytest.mark.scenario(178)
@given(slices(), weights)
def test_two_tenants_that_swap_their_work_swap_their_rows(given_slice, weights):
    import msgspec

    swap = {A: B, B: A}

    def swapped(parts):
        return [msgspec.structs.replace(part, owner=swap.get(part.owner, part.owner)) for part in parts]

    pins = {swap.get(owner, owner): charge for owner, charge in given_slice.pins.items()}
    other = msgspec.structs.replace(given_slice, owners=swapped(given_slice.owners), pins=pins)
    before = {(row.owner, row.kind): row.nanos for row in allocate(given_slice, weights).rows}
    after = {(row.owner, row.kind): row.nanos for row in allocate(other, weights).rows}
    for owner, kind in before.keys() | after.keys():
        # Equal remainders go to the smaller id, so a swap can move one nanodollar.
        assert abs(before.get((owner, kind), 0) - after.get((swap.get(owner, owner), kind), 0)) <= 1


@pytest.mark.scenario(178)
@given(slices(), slices(), weights)
def test_two_slices_cost_what_their_time_together_costs(first, second, weights):
    one = allocate(first, weights)
    two = allocate(second, weights, carry=one.carry)
    charged = sum(first.charges.values()) + sum(second.charges.values())
    assert one.total_nanos + two.total_nanos == charged // MS_PER_HOUR


@given(slices(), weights)
def test_the_same_slice_gives_the_same_rows_in_any_order_of_claims(given_slice, weights):
    import msgspec

    other = msgspec.structs.replace(
        given_slice, owners=given_slice.owners[::-1], pins=dict(reversed(given_slice.pins.items()))
    )
    assert allocate(other, weights) == allocate(given_slice, weights)
