"""A process's counts on replicas: no request is counted twice, and no count remains after a request ends."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.api.inference_request import BATCH_TIER
from data_plane.gateway.scheduling.fair_share import PageDemand
from data_plane.gateway.scheduling.replica_load import Occupancy, ReplicaLoad, Shares, tag


def stay(
    load: ReplicaLoad, shares: Shares, *, tenant: str = "tn_1", pages: int = 4, adapter: str = "ad_1"
) -> Occupancy:
    return Occupancy(load, shares, tenant_id=tenant, weight=1, pages=pages, prompt_tokens=100, adapter=adapter)


@given(
    st.lists(
        st.tuples(st.sampled_from(["refused", "granted", "unanswered"]), st.booleans(), st.integers(1, 4)), max_size=20
    )
)
def test_nothing_is_counted_after_all_requests_end(ends):
    load, shares, held = ReplicaLoad(), Shares(), 0
    stays = [stay(load, shares, adapter=f"ad_{n % 3}", tenant=f"tn_{n % 2}") for n in range(len(ends))]
    assert load.taken_pages == 4 * len(ends)
    assert load.requests == len(ends)
    for each, (end, prefilled, granted) in zip(stays, ends, strict=True):
        if end == "granted":
            held += granted
            each.answered(held, granted_pages=granted)
        elif end == "refused":
            each.answered(held, granted_pages=4)
            each.leave()
        if prefilled:
            each.prefilled()
    running = sum(end != "refused" for end, _, _ in ends)
    assert load.requests == running
    assert load.held_pages == held
    for each, (end, _, _) in zip(stays, ends, strict=True):
        if end == "granted":
            each.give_back()
        each.leave()
        each.give_back()  # a second time changes nothing
    assert (load.taken_pages, load.requests, load.prompt_tokens, dict(load.adapters)) == (0, 0, 0, {})
    assert (shares.total, shares.demands()) == (0, {})
    assert shares.is_below("tn_1", 1, 1, 2)


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.frozensets(st.sampled_from("defgh")))
def test_running_adapters_of_all_gateways_are_counted_once_each(ours, theirs):
    load = ReplicaLoad()
    for name in ours[::2]:
        load.begin(name)
    load.elsewhere = frozenset(tag(name) for name in theirs)
    for name in ours[1::2]:
        load.begin(name)
    assert load.adapters_in_use == len(theirs.union(ours))
    assert load.tags == [tag(name) for name in load.adapters]
    assert all(load.runs(name, tag(name)) == (name in theirs.union(ours)) for name in "abcdefgh")
    for name in ours:
        load.end(name)
    assert load.adapters_in_use == len(theirs)
    load.elsewhere = frozenset()
    assert (load.adapters_in_use, load.tags) == (0, [])


def test_a_moved_request_moves_its_pages():
    one, two, shares = ReplicaLoad(), ReplicaLoad(), Shares()
    first, second = stay(one, shares), stay(two, shares)
    first.answered(4, granted_pages=4)
    second.answered(4, granted_pages=4)
    first.give_back()
    assert (one.taken_pages, two.taken_pages) == (0, 4)
    assert (one.requests, two.requests) == (0, 1)
    second.give_back()
    assert two.taken_pages == 0


def test_batch_requests_are_counted_while_they_are_there():
    load, shares = ReplicaLoad(), Shares()
    requests = [
        Occupancy(load, shares, tenant_id="tn", weight=1, tier=tier, pages=2, prompt_tokens=0, adapter="")
        for tier in (BATCH_TIER, 1, BATCH_TIER)
    ]
    assert load.batch_requests == 2
    for each in requests:
        each.leave()
        each.leave()
    assert load.batch_requests == 0


def test_a_tenant_is_below_its_share_while_the_others_and_a_newcomer_could_have_as_much():
    shares = Shares()
    shares.add("tn_a", 1, 1, 40)
    assert shares.is_below("tn_a", 1, 10, 100)  # half, with one newcomer
    assert not shares.is_below("tn_a", 1, 11, 100)
    shares.add("tn_b", 1, 1, 4)
    assert not shares.is_below("tn_a", 1, 10, 100)
    assert shares.is_below("tn_b", 1, 29, 100)
    assert not shares.is_below("tn_b", 1, 30, 100)
    assert shares.is_below("tn_b", 2, 45, 100)
    assert shares.total == 44


def test_running_work_elsewhere_counts_and_waiting_tenants_do_not():
    shares = Shares()
    assert shares.is_idle("tn_a")
    assert shares.is_below("tn_a", 1, 50, 100)
    shares.apply_elsewhere(
        {"tn_a": PageDemand(1, 1, 10, 5), "tn_b": PageDemand(2, 1, 30, 0), "tn_c": PageDemand(9, 1, 0, 50)}
    )
    assert not shares.is_idle("tn_a")
    assert shares.is_idle("tn_c")
    assert shares.is_below("tn_a", 1, 15, 100)  # a quarter, with tn_b of weight 2 and a newcomer
    assert not shares.is_below("tn_a", 1, 16, 100)
    shares.add("tn_a", 1, 1, 15)
    assert not shares.is_below("tn_a", 1, 1, 100)
    shares.apply_elsewhere({})
    assert shares.is_below("tn_a", 1, 35, 100)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-50, 50)), max_size=30),
    st.dictionaries(
        st.sampled_from("abcd"), st.builds(PageDemand, st.integers(1, 5), st.just(1), st.integers(0, 9), st.just(0))
    ),
)
def test_the_running_total_of_weights_equals_their_sum(changes, elsewhere):
    shares, pages = Shares(), Counter()
    for number, (tenant, change) in enumerate(changes):
        if number == len(changes) // 2:
            shares.apply_elsewhere(elsewhere)
        shares.add(tenant, 2, 1, change)
        pages[tenant] = max(0, pages[tenant] + change)
    shares.apply_elsewhere(elsewhere)
    at_work = {tenant: 2 for tenant, held in pages.items() if held}
    for tenant, demand in elsewhere.items():
        if demand.held:
            at_work[tenant] = max(demand.weight, at_work.get(tenant, 0))
    weights = sum(at_work.values())
    assert shares.total == sum(pages.values())
    # A newcomer has weight 1 and one page. A tenant is below its share exactly if the pool has a page per weight unit.
    assert shares.is_below("new", 1, 1, weights + 2)
    assert not shares.is_below("new", 1, 1, weights + 1)
