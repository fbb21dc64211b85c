"""The division of a pool between gateways: the shares add up, leave no page that a tenant wants, and depend only on the
tenants, however their requests are distributed over gateways.
"""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.admission.fair_queue import QueueBounds, QueueEntry
from data_plane.gateway.admission.pool_queue import PoolQueue
from data_plane.gateway.scheduling.fair_share import (
    Division,
    GatewayBacklog,
    GatewayShare,
    PageDemand,
    divide,
    levels,
    named,
)

demands = st.builds(
    PageDemand, weight=st.integers(1, 10), tier=st.integers(0, 2), held=st.integers(0, 200), waiting=st.integers(0, 200)
)
backlogs = st.lists(
    st.builds(GatewayBacklog, st.dictionaries(st.sampled_from("abcdef"), demands, max_size=5)), min_size=2, max_size=4
)
pools = st.integers(1, 2000)


def of(**tenants: tuple[int, int]) -> GatewayBacklog:
    """Tenants of equal weight, with pages held and waited for."""
    return GatewayBacklog({name: PageDemand(1, 1, held, waiting) for name, (held, waiting) in tenants.items()})


def divided(reports: list[GatewayBacklog], pages: float) -> list[Division]:
    """The division as each gateway calculates it."""
    return [divide(here, [*reports[:n], *reports[n + 1 :]], pages) for n, here in enumerate(reports)]


@given(reports=backlogs, pages=pools)
def test_shares_add_up_to_the_pool_or_to_the_whole_demand(reports, pages):
    views = divided(reports, pages)
    wanted = sum(demand.wanted for backlog in reports for demand in backlog.tenants.values())
    shares = [view.share for view in views]
    if wanted <= pages:
        assert shares == [None] * len(reports), "there is enough for all tenants"
    elif None not in shares:
        assert math.isclose(sum(shares), pages, rel_tol=1e-9)
        for backlog, share in zip(reports, shares, strict=True):
            assert share <= sum(demand.wanted for demand in backlog.tenants.values()) + 1e-6
    else:
        # The only waiting gateway need not yield; the others get the rest.
        assert sum(share for share in shares if share is not None) <= pages + 1e-6


@given(reports=backlogs, pages=pools)
def test_a_gateway_without_competition_yields_nothing(reports, pages):
    here = reports[0]
    idle = [
        GatewayBacklog({name: PageDemand(c.weight, c.tier, c.held, 0) for name, c in other.tenants.items()})
        for other in reports[1:]
    ]
    assert divide(here, idle, pages).share is None


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=2, max_size=4),
    st.integers(1, 500),
)
def test_equal_backlogged_tenants_get_equal_shares_however_they_are_split(splits, pages):
    reports = [of(one=(0, ours), other=(0, theirs)) for ours, theirs in splits]
    wanted = [sum(ours for ours, _ in splits), sum(theirs for _, theirs in splits)]
    if min(wanted) < pages / 2:
        return
    given_to = {"one": 0.0, "other": 0.0}
    for view, backlog in zip(divided(reports, pages), reports, strict=True):
        if view.share is None:
            return  # every request fits
        weights = {name: view.demand_fractions.get(name, 1.0) for name in backlog.tenants}
        # The fair queue divides the gateway's share by weight; a tenant's unused part goes to the other.
        fair = {name: view.share * weight / sum(weights.values()) for name, weight in weights.items()}
        over = {name: max(0.0, fair[name] - demand.wanted) for name, demand in backlog.tenants.items()}
        for name, other in (("one", "other"), ("other", "one")):
            given_to[name] += fair[name] - over[name] + over[other]
    assert math.isclose(given_to["one"], given_to["other"], rel_tol=0.05)


@given(st.lists(demands, max_size=8), pools)
def test_no_tenant_gets_more_than_its_demand_and_no_demanded_page_is_left(wishes, pages):
    level = levels(wishes, pages)
    given_out = [min(demand.wanted, level[demand.tier] * demand.weight) for demand in wishes if demand.wanted]
    assert math.isclose(sum(given_out), min(pages, sum(demand.wanted for demand in wishes)), abs_tol=1e-6)
    short = [demand.tier for demand in wishes if demand.wanted > level.get(demand.tier, 0) * demand.weight + 1e-9]
    for demand in wishes:
        if short and demand.wanted and demand.tier > min(short):
            assert level[demand.tier] == 0, "worse tiers get the rest of better ones"


def test_pages_left_by_a_tenant_with_little_demand_go_to_the_others_by_weight():
    wishes = [PageDemand(1, 1, 4, 6), PageDemand(1, 1, 0, 500), PageDemand(3, 1, 300, 200)]
    assert levels(wishes, 250) == {1: 60.0}  # ten, sixty and three times sixty


def test_a_tenants_share_is_split_by_its_demand_at_each_gateway():
    here, other = of(one=(10, 30), two=(0, 100)), of(one=(60, 60), two=(0, 300))
    view = divide(here, [other], 100)
    assert view.share == 50 * 40 / 160 + 50 * 100 / 400
    assert view.demand_fractions == {"one": 0.25, "two": 0.25}
    assert {name: demand.held for name, demand in view.elsewhere.items()} == {"one": 60, "two": 0}


def test_a_fully_served_tenant_counts_in_full_at_every_gateway():
    here, other = of(quiet=(0, 4), flood=(60, 100)), of(quiet=(12, 0), flood=(30, 50))
    assert divide(here, [other], 100).demand_fractions == {"flood": 1 - 80 / 240}


def test_a_tenants_part_is_averaged_also_over_times_without_demand_elsewhere():
    pool = PoolQueue(QueueBounds(requests_max=9, tokens_max=9, tenant_requests_max=9))
    here, there, elsewhere = of(one=(1, 9)), of(one=(400, 500), other=(0, 500)), of(other=(0, 500))
    pool.queue.push(QueueEntry(tenant_id="one", tokens=1, item=None))
    (account,) = pool.queue.accounts()
    for polls in range(100):
        pool.apply(here, [there], 100, polls / 20)
    before = account.demand_fraction
    assert before < 0.15
    pool.apply(here, [elsewhere], 100, 5.0)
    pool.apply(here, [there], 100, 5.05)
    assert account.demand_fraction == pytest.approx(before, abs=0.05)
    for polls in range(400):
        pool.apply(here, [elsewhere], 100, 5.1 + polls / 20)
    assert account.demand_fraction == 1.0


def test_the_best_tier_and_smallest_rank_waiting_elsewhere_are_known():
    waiting = [GatewayBacklog({"a": PageDemand(1, tier, 0, 50)}, {}, rank) for tier, rank in ((3, 16), (2, 8))]
    idle = GatewayBacklog({"b": PageDemand(1, 1, 50, 0)}, {}, 0)
    view = divide(of(c=(0, 100)), [*waiting, idle], 100)
    assert (view.tier_least, view.rank_least) == (2, 8)


def test_tenants_above_the_limit_are_published_as_one_with_their_total_weight():
    many = {f"tn_{n}": PageDemand(1, 1, n, 0) for n in range(10)} | {"tn_x": PageDemand(5, 2, 0, 1)}
    by_name, rest = named(many, 3)
    assert by_name.keys() == {"tn_9", "tn_8", "tn_7"}
    assert rest == {1: PageDemand(7, 1, sum(range(7)), 0), 2: PageDemand(5, 2, 0, 1)}
    # Its name matches no tenant at another gateway.
    reports = [GatewayBacklog(by_name, rest), GatewayBacklog(by_name, rest)]
    assert len(divide(reports[0], reports[1:], 100).elsewhere) == 5


def test_a_backlog_round_trips_and_an_invalid_one_is_rejected():
    sent = GatewayBacklog({"tn_a": PageDemand(1, 1, 4, 8)}, {1: PageDemand(3, 1, 2, 0)}, 16, {"rep_1": ["0123"]})
    assert msgspec.json.decode(msgspec.json.encode(sent), type=GatewayBacklog) == sent
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'[{"tn_a": [0, 1, 4, 8]}]', type=GatewayBacklog)


def test_a_gateway_without_debt_may_exceed_its_share_by_part_of_one_request():
    allotment = GatewayShare()
    assert allotment.allows(1000, 4)
    allotment.divide(Division(share=6.0), 4, 0.0)
    assert allotment.allows(0, 4)
    assert allotment.allows(4, 4), "two requests would exceed the share by two pages, but the gateway has no debt"
    assert not allotment.allows(8, 4)
    allotment.divide(Division(share=6.0), 8, 1.0)
    assert not allotment.allows(4, 4), "it has exceeded its share by two pages for a second"
    assert allotment.allows(4, 4, overdue=True)
    assert not allotment.allows(8, 4, overdue=True)
    assert allotment.allows(0, 4)
    allotment.divide(Division(share=6.0), 4, 2.5)
    assert allotment.allows(4, 4), "and then had two pages below its share for longer"
    allotment.divide(Division(), 4, 3.0)
    assert allotment.allows(1000, 4)
