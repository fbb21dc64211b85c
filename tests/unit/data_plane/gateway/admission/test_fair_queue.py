"""Turns in the fair queue: shares by weight, tiers, the effect of idle time, and which requests enter a full queue."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.admission.fair_queue import FairQueue, QueueBounds, QueueEntry, WaitQueueFull, service

AMPLE = QueueBounds(requests_max=10_000, tokens_max=10**9, tenant_requests_max=10_000)


def queue(**bounds: int) -> FairQueue[str]:
    fields = {"requests_max": 10_000, "tokens_max": 10**9, "tenant_requests_max": 10_000, **bounds}
    return FairQueue(QueueBounds(**fields))


def entry(tenant: str, tokens: int = 10, name: str = "", **fields: object) -> QueueEntry[str]:
    return QueueEntry(tenant_id=tenant, tokens=tokens, item=name, **fields)


def serve(turns: FairQueue[str]) -> QueueEntry[str]:
    """Take the next request and charge its tokens."""
    first = next(turns.in_order(of_tenant_max=1))
    turns.remove(first).charge(first.tokens)
    return first


def fill(turns: FairQueue[str], tenant: str, sizes: list[int], **fields: object) -> None:
    for number, tokens in enumerate(sizes):
        turns.push(entry(tenant, tokens, f"{tenant}{number}", **fields))


sizes = st.lists(st.integers(1, 500), min_size=40, max_size=60)


@given(ours=sizes, theirs=sizes, weight=st.integers(1, 5))
def test_two_backlogged_tenants_get_their_weights_within_one_request(ours, theirs, weight):
    turns = queue()
    fill(turns, "ours", ours, weight=weight)
    fill(turns, "theirs", theirs)
    served: Counter[str] = Counter()
    waiting = {"ours": len(ours), "theirs": len(theirs)}
    while all(waiting.values()):
        taken = serve(turns)
        served[taken.tenant_id] += taken.tokens
        waiting[taken.tenant_id] -= 1
        # The paper's bound: the largest request, on either side.
        assert abs(served["ours"] / weight - served["theirs"]) <= max(*ours, *theirs)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50), st.integers(0, 2)), max_size=60))
def test_waiting_requests_get_turns_by_tier_and_by_arrival_within_a_tenant(arrivals):
    turns, tiers = queue(), {"a": 0, "b": 0, "c": 1, "d": 1}
    for number, (tenant, tokens, _) in enumerate(arrivals):
        turns.push(entry(tenant, tokens, str(number), tier=tiers[tenant]))
    assert (turns.requests, turns.tokens) == (len(arrivals), sum(tokens for _, tokens, _ in arrivals))
    taken = [serve(turns) for _ in arrivals]
    assert [each.tier for each in taken] == sorted(each.tier for each in taken)
    for tenant in "abcd":
        numbers = [int(each.item) for each in taken if each.tenant_id == tenant]
        assert numbers == sorted(numbers)
    assert (turns.requests, turns.tokens) == (0, 0)
    assert next(turns.in_order(of_tenant_max=1), None) is None


def test_idle_time_earns_nothing():
    turns = queue()
    fill(turns, "busy", [10] * 50)
    turns.push(entry("late"))
    assert serve(turns).tenant_id == "busy"
    assert serve(turns).tenant_id == "late"
    for _ in range(20):
        assert serve(turns).tenant_id == "busy"
    fill(turns, "late", [10] * 10)
    served = Counter(serve(turns).tenant_id for _ in range(10))
    assert served == {"late": 5, "busy": 5}  # not ten for the twenty rounds it was idle


def test_a_tenant_does_not_pay_later_for_using_idle_capacity():
    turns = queue()
    fill(turns, "early", [10] * 60)
    for _ in range(50):
        serve(turns)
    fill(turns, "late", [10] * 10)
    served = Counter(serve(turns).tenant_id for _ in range(10))
    assert served == {"late": 5, "early": 5}


def test_an_overcharge_is_returned_in_turns():
    turns = queue()
    fill(turns, "a", [10] * 10)
    fill(turns, "b", [10] * 10)
    first = next(turns.in_order(of_tenant_max=1))
    account = turns.remove(first)
    account.charge(1000)
    assert {serve(turns).tenant_id for _ in range(3)} == {"b"}
    account.charge(10 - 1000)
    assert {serve(turns).tenant_id for _ in range(2)} == {"a"}


def test_a_request_that_is_put_back_keeps_its_place():
    turns = queue()
    fill(turns, "a", [10] * 3)
    first = next(turns.in_order(of_tenant_max=1))
    turns.remove(first)
    assert not turns.waits(first)
    turns.put_back(first)
    assert turns.waits(first)
    assert [each.item for each in turns.in_order(of_tenant_max=3)] == ["a0", "a1", "a2"]


def test_an_urgent_request_goes_before_its_tenants_others_and_before_no_other_tenants():
    turns = queue()
    fill(turns, "a", [10] * 2)
    fill(turns, "b", [10])
    urgent = entry("a", name="urgent", urgent=True)
    assert turns.tokens_ahead(urgent) < turns.tokens_ahead(entry("a"))
    turns.push(urgent)
    turns.push(entry("a", name="later", urgent=True))
    assert [each.item for each in turns.in_order(of_tenant_max=9)] == ["b0", "urgent", "later", "a0", "a1"]


def test_only_a_tenants_oldest_requests_are_scanned():
    turns = queue()
    fill(turns, "a", [10] * 5)
    fill(turns, "b", [10] * 5)
    assert [each.item for each in turns.in_order(of_tenant_max=2)] == ["a0", "a1", "b0", "b1"]


def test_of_each_kind_a_tenants_oldest_requests_are_scanned():
    turns = queue()
    fill(turns, "a", [10] * 3)
    fill(turns, "a", [20] * 3, kind="other")
    assert [each.tokens for each in turns.in_order(of_tenant_max=2)] == [10, 10, 20, 20]
    for _ in range(3):
        serve(turns)
    assert [each.tokens for each in turns.in_order(of_tenant_max=2)] == [20, 20]


def test_one_tenant_cannot_have_more_than_its_part_of_the_queue():
    turns = queue(tenant_requests_max=3)
    fill(turns, "flood", [10] * 3)
    with pytest.raises(WaitQueueFull) as full:
        turns.push(entry("flood"))
    assert full.value.reason == "tenant"
    assert turns.push(entry("quiet")) == []


def test_in_a_full_queue_the_newest_request_of_the_largest_tenant_makes_room_for_a_smaller_one():
    turns = queue(requests_max=4)
    fill(turns, "flood", [10] * 4)
    (pushed_out,) = turns.push(entry("quiet"))
    assert pushed_out is not None
    assert pushed_out.item == "flood3"
    assert [each.item for each in turns.push(entry("quiet"))] == ["flood2"]
    for tenant in ("flood", "quiet"):
        with pytest.raises(WaitQueueFull) as full:
            turns.push(entry(tenant))
        assert full.value.reason == "full"
    assert turns.requests == 4


def test_a_better_tier_always_displaces_a_worse_one_and_never_the_reverse():
    turns = queue(requests_max=2)
    fill(turns, "best", [10] * 2, tier=0)
    with pytest.raises(WaitQueueFull):
        turns.push(entry("worse", tier=1))
    turns = queue(requests_max=1)
    turns.push(entry("worse", tier=1))
    assert [each.tenant_id for each in turns.push(entry("best", tier=0))] == ["worse"]


def test_the_queue_is_bounded_in_tokens_as_well():
    turns = queue(tokens_max=100)
    fill(turns, "flood", [40, 40])
    assert [each.item for each in turns.push(entry("quiet", 60))] == ["flood1"]
    with pytest.raises(WaitQueueFull):
        turns.push(entry("other", 41))  # removing one of two would not make room for it
    assert [each.item for each in turns.in_order(of_tenant_max=9)] == ["flood0", ""]
    assert turns.tokens == 100


def test_the_work_ahead_of_a_tenant_is_its_own_plus_the_others_share():
    turns = queue()
    fill(turns, "flood", [10] * 100)
    fill(turns, "few", [10] * 2)
    assert turns.tokens_ahead(entry("new", 10)) == 20  # ten each of the two others
    assert turns.tokens_ahead(entry("new", 10, weight=5)) == 4
    assert turns.tokens_ahead(entry("few", 10)) == 20 + 30
    assert turns.tokens_ahead(entry("flood", 10)) == 1000 + 1010  # the other may request as much until then
    assert turns.tokens_ahead(entry("best", 10, tier=-1)) == 0
    assert turns.tokens_ahead(entry("last", 10, tier=5)) == 1020


def test_a_generated_token_counts_twice_as_much_as_a_prompt_token():
    assert service(100, 50) == 200


def test_the_queue_knows_whether_a_better_tier_waits():
    turns = queue()
    assert not turns.has_higher_tier(5)
    fill(turns, "a", [10], tier=2)
    fill(turns, "b", [10], tier=3)
    assert [turns.has_higher_tier(tier) for tier in (1, 2, 3)] == [False, False, True]
    taken = serve(turns)
    assert not turns.has_higher_tier(3)
    turns.put_back(taken)
    assert turns.has_higher_tier(3)


def test_a_tenant_with_most_demand_elsewhere_gets_proportionally_less_here():
    turns = queue()
    fill(turns, "here", [10] * 40)
    fill(turns, "everywhere", [10] * 40)
    turns.set_demand_fractions({"everywhere": 0.25})
    served = Counter(serve(turns).tenant_id for _ in range(40))
    assert served == {"here": 32, "everywhere": 8}


def test_a_charge_is_taken_back_at_the_rate_at_which_it_was_made():
    turns = queue()
    fill(turns, "a", [10, 10])
    turns.set_demand_fractions({"a": 0.5})
    account = turns.remove(next(turns.in_order(of_tenant_max=1)))
    rate = account.rate
    account.charge(100, rate)
    turns.set_demand_fractions({})
    account.charge(-100, rate)
    assert account.counter == 0


def test_a_tenant_served_more_than_others_counts_their_waiting_requests_as_ahead():
    turns = queue()
    fill(turns, "a", [100, 100])
    fill(turns, "b", [50])
    evenly = turns.tokens_ahead(entry("a", 100))
    turns.remove(next(turns.in_order(of_tenant_max=1))).charge(1000)
    assert turns.tokens_ahead(entry("a", 100)) == evenly - 100 - 100 + 50
