"""How gateways share a pool of replicas: the backlog that each reports of its tenants, and the part of the pool that
each gets. Pure; gateway_peers.py exchanges the backlogs and expires them.

Pages go to tenants by tier and weight, none more than it wants (max-min fairness: Bertsekas and Gallager, "Data
Networks", 6.5.2). A tenant's pages go to its gateways in proportion to what it wants at each. So gateways with the same
reports come to the same division, and pages that one does not want go to the others.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from core.contracts.replicas import ReplicaStatus

FRACTION_MIN: Final = 0.01
"""The least part of a tenant's demand at one gateway that counts. A request costs its pages divided by this part; below
it, the tenant would wait too long after one request."""
_OWED_MAX_S: Final = 10.0  # pages taken beyond the share, or left unused, count for this long
_MOST: Final = 1 << 40  # larger than any real count, and exact in a float


class PageDemand(msgspec.Struct, frozen=True, array_like=True):
    """One tenant at one gateway: the KV pages that its running requests hold, and those that its requests wait for."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
    tier: int
    held: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    waiting: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]

    @property
    def wanted(self) -> int:
        return self.held + self.waiting

    def combined(self, other: "PageDemand") -> "PageDemand":
        """The demand of one tenant at two gateways. While its plan changes, the better weight and tier count."""
        return PageDemand(
            max(self.weight, other.weight), min(self.tier, other.tier), self.held + other.held,
            self.waiting + other.waiting,
        )  # fmt: skip


class GatewayBacklog(msgspec.Struct, frozen=True, array_like=True):
    """One gateway's running and waiting requests on the replicas of a base model. ``rest`` combines the tenants that
    are not named, by tier. ``rank_least`` is the smallest adapter rank of requests that wait for pages. ``adapters``
    are tags of the adapters in use on each replica. ``reserved`` are replicas whose pages are reserved for an overdue
    request, and whether tenants below their share leave them free as well. ``arriving`` are the pages of the requests
    for each pool, without batch, that arrive within half a second (95th percentile). ``closed_pools`` serve none of
    the requests that wait for pages.
    """

    tenants: dict[str, PageDemand] = {}
    rest: dict[int, PageDemand] = {}
    rank_least: int = 0
    adapters: dict[str, list[str]] = {}
    reserved: dict[str, bool] = {}
    arriving: dict[str, Annotated[int, msgspec.Meta(ge=0, le=_MOST)]] = {}
    closed_pools: list[str] = []

    @property
    def held(self) -> int:
        """KV pages held by running requests."""
        return sum(demand.held for demands in (self.tenants, self.rest) for demand in demands.values())

    @property
    def waiting_tiers(self) -> set[int]:
        """The tiers of requests that wait for pages."""
        return {demand.tier for demands in (self.tenants, self.rest) for demand in demands.values() if demand.waiting}


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogBounds:
    """How much a gateway reports: tenants by name, and adapters in use."""

    tenants_max: int
    adapters_max: int


@dataclass(frozen=True, slots=True)
class Division:
    """One gateway's view of the pool. ``share`` is its tenants' pages; None while no gateway has to give way. ``fill``
    is the held fraction of all shares. ``demand_fractions``: for each tenant that demands more than its share and has
    requests at several gateways, the fraction of its demand at this gateway. ``elsewhere`` are the tenants of the other
    gateways; ``rank_least`` and ``tier_least`` are the smallest rank and the highest tier that wait there, and
    ``closed_pools`` serve none of the requests that do.
    """

    share: float | None = None
    fill: float = 1.0
    rank_least: int = 0
    tier_least: int = 0
    demand_fractions: Mapping[str, float] = field(default_factory=dict)
    elsewhere: Mapping[str, PageDemand] = field(default_factory=dict)
    closed_pools: frozenset[str] = frozenset()

    def wants(self, status: ReplicaStatus) -> bool:
        """Whether a request that waits at another gateway may use this replica."""
        return status.rank_max >= self.rank_least and status.pool not in self.closed_pools


def named(demands: Mapping[str, PageDemand], tenants_max: int) -> tuple[dict[str, PageDemand], dict[int, PageDemand]]:
    """The tenants that want most by name, and all others combined into one demand for each tier, with the sum of
    weights.
    """
    if len(demands) <= tenants_max:
        return dict(demands), {}
    most = heapq.nlargest(tenants_max, demands, key=lambda tenant_id: (demands[tenant_id].wanted, tenant_id))
    rest: dict[int, PageDemand] = {}
    for tenant_id in demands.keys() - set(most):
        demand = demands[tenant_id]
        others = rest.get(demand.tier, PageDemand(0, demand.tier, 0, 0))
        rest[demand.tier] = PageDemand(
            others.weight + demand.weight, demand.tier, others.held + demand.held, others.waiting + demand.waiting
        )
    return {tenant_id: demands[tenant_id] for tenant_id in most}, rest


def elsewhere_on(replica_id: str, others: Iterable[GatewayBacklog]) -> frozenset[str]:
    """Tags of the adapters that other gateways use on a replica."""
    return frozenset(tag for backlog in others for tag in backlog.adapters.get(replica_id, ()))


def reserved_by(others: Iterable[GatewayBacklog]) -> dict[bool, frozenset[str]]:
    """Replicas whose pages other gateways reserve for an overdue request: from tenants below their share as well
    (True), or from all other tenants (False).
    """
    reserved = [each for backlog in others for each in backlog.reserved.items()]
    return {
        True: frozenset(name for name, from_all in reserved if from_all),
        False: frozenset(name for name, _ in reserved),
    }


def levels(demands: Iterable[PageDemand], pages: float) -> dict[int, float]:
    """Pages for each unit of weight, by tier; infinite where a tier gets all it wants. Lower tiers get the
    remainder.
    """
    by_tier: dict[int, list[PageDemand]] = {}
    for demand in demands:
        if demand.wanted:
            by_tier.setdefault(demand.tier, []).append(demand)
    found: dict[int, float] = {}
    left = pages
    for tier in sorted(by_tier):
        weights = sum(demand.weight for demand in by_tier[tier])
        found[tier] = float("inf")
        for demand in sorted(by_tier[tier], key=lambda demand: demand.wanted / demand.weight):
            if demand.wanted * weights > left * demand.weight:
                found[tier] = max(0.0, left / weights)
                left = 0.0
                break
            left -= demand.wanted
            weights -= demand.weight
    return found


def divide(here: GatewayBacklog, others: Sequence[GatewayBacklog], pages: float) -> Division:
    """The division of ``pages`` between this gateway's tenants and the others', as this gateway sees it."""
    elsewhere = _combined(others)
    everywhere = dict(elsewhere)
    own = _keyed(here, 0)
    for tenant_id, demand in own.items():
        everywhere[tenant_id] = demand.combined(everywhere[tenant_id]) if tenant_id in everywhere else demand
    level = levels(everywhere.values(), pages)
    demand_fractions = {
        tenant_id: max(FRACTION_MIN, 1 - demand.wanted / total.wanted)
        for tenant_id, demand in elsewhere.items()
        if (total := everywhere[tenant_id]).wanted > level.get(total.tier, 0.0) * total.weight
    }
    waiting = [backlog for backlog in others if backlog.waiting_tiers]
    if not waiting or all(each == float("inf") for each in level.values()):
        return Division(demand_fractions=demand_fractions, elsewhere=elsewhere)
    shares = {
        tenant_id: min(demand.wanted, level[demand.tier] * demand.weight)
        for tenant_id, demand in everywhere.items()
        if demand.wanted
    }
    return Division(
        share=sum(
            shares[tenant_id] * demand.wanted / everywhere[tenant_id].wanted
            for tenant_id, demand in own.items()
            if demand.wanted
        ),
        fill=sum(demand.held for demand in everywhere.values()) / max(1.0, sum(shares.values())),
        rank_least=min(backlog.rank_least for backlog in waiting),
        tier_least=min(min(backlog.waiting_tiers) for backlog in waiting),
        demand_fractions=demand_fractions,
        elsewhere=elsewhere,
        closed_pools=frozenset.intersection(*(frozenset(backlog.closed_pools) for backlog in waiting)),
    )


def _keyed(backlog: GatewayBacklog, number: int) -> dict[str, PageDemand]:
    """All demands of one gateway. Unnamed tenants get keys that equal no tenant id and no other gateway's keys."""
    return backlog.tenants | {f"\0{number} {tier}": demand for tier, demand in backlog.rest.items()}


def _combined(backlogs: Iterable[GatewayBacklog]) -> dict[str, PageDemand]:
    found: dict[str, PageDemand] = {}
    for number, backlog in enumerate(backlogs, start=1):
        for tenant_id, demand in _keyed(backlog, number).items():
            found[tenant_id] = demand.combined(found[tenant_id]) if tenant_id in found else demand
    return found


class GatewayShare:
    """One gateway's share of one pool. Pure: times come in, in seconds of a monotonic clock.

    A share is seldom a whole number of requests. A gateway within one request of its share may round up while it has no
    debt. So the remainder goes round between the gateways, and over time each gets its share.
    """

    def __init__(self) -> None:
        self.division = Division()
        self._owed = 0.0  # page-seconds held beyond the share; negative: left unused
        self._since = 0.0

    @property
    def bounded(self) -> bool:
        """Whether tenants at other gateways wait for pages, so that this gateway's share is limited."""
        return self.division.share is not None

    def divide(self, division: Division, held: int, now_s: float) -> None:
        """Apply a new division of the pool. Until now this gateway's running requests held ``held`` pages."""
        last = self.division
        if last.share is None or division.share is None:
            self._owed = 0.0
        else:
            most = last.share * _OWED_MAX_S
            owed = self._owed + (held - last.share * last.fill) * (now_s - self._since)
            self._owed = max(-most, min(most, owed))
        self.division, self._since = division, now_s

    def allows(self, held: int, pages: int, *, overdue: bool = False) -> bool:
        """Whether this gateway, which holds ``held`` pages, may take ``pages`` more. It may go into debt for an overdue
        request.
        """
        share = self.division.share
        return share is None or held + pages <= share or (held < share and (overdue or self._owed <= 0))
