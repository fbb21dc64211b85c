"""How gateways share a pool of replicas: what each tells the others of its tenants, and which part of the pool is then
whose. Pure: who hears what, and how old it is, is gateway_peers.py's.

Pages go to tenants by tier and weight, none more than it wants (max-min fairness: Bertsekas and Gallager, "Data
Networks", 6.5.2), and a tenant's to its gateways by how much it wants at each. So every gateway that has heard the same
comes to the same division, and what one does not want is the others'.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

PART_MIN: Final = 0.01
"""Of a tenant's wishes, the least part at one gateway that counts: less would let one charge last for ever."""
_OWED_MAX_S: Final = 10.0  # what was taken beyond the share, or left, further back than this is forgotten
_MOST: Final = 1 << 40  # no honest count is larger, and a float holds it


class PageClaim(msgspec.Struct, frozen=True, array_like=True):
    """One tenant at one gateway: the KV pages it has in work, and those that its requests still wait for."""

    weight: Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
    tier: int
    held: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    waiting: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]

    @property
    def wanted(self) -> int:
        return self.held + self.waiting

    def joined(self, other: "PageClaim") -> "PageClaim":
        """Of one tenant at two gateways; while its plan changes, the better weight and tier count."""
        return PageClaim(
            max(self.weight, other.weight), min(self.tier, other.tier), self.held + other.held,
            self.waiting + other.waiting,
        )  # fmt: skip


class GatewayBacklog(msgspec.Struct, frozen=True, array_like=True):
    """What one gateway has in work and waiting on the replicas of a base model. ``rest`` are the tenants that are not
    named, by tier. ``rank_least`` is the smallest adapter rank of those who wait for pages; ``adapters`` are tags of
    the adapters in work on each replica; ``kept`` are replicas whose pages are kept for somebody overdue there, and
    whether tenants with less than their share leave them as well.
    """

    tenants: dict[str, PageClaim] = {}
    rest: dict[int, PageClaim] = {}
    rank_least: int = 0
    adapters: dict[str, list[str]] = {}
    kept: dict[str, bool] = {}

    @property
    def held(self) -> int:
        """KV pages in work there."""
        return sum(claim.held for claims in (self.tenants, self.rest) for claim in claims.values())

    @property
    def waiting_tiers(self) -> set[int]:
        """Of those who wait for pages there."""
        return {claim.tier for claims in (self.tenants, self.rest) for claim in claims.values() if claim.waiting}


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogBounds:
    """How much of it a gateway tells: so many tenants by name, and adapters in work on replicas."""

    tenants_max: int
    adapters_max: int


@dataclass(frozen=True, slots=True)
class Division:
    """One gateway's view of the pool. ``share`` are the pages that are its tenants'; None while nobody has to give way.
    ``fill`` is how much of all shares is held; ``parts`` say how much of their wishes those tenants have here that want
    more than they are given, and not only here; ``elsewhere`` are the tenants of the others; ``rank_least`` and
    ``tier_least`` are the smallest rank and the best tier that they wait with.
    """

    share: float | None = None
    fill: float = 1.0
    rank_least: int = 0
    tier_least: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    elsewhere: Mapping[str, PageClaim] = field(default_factory=dict)


def named(claims: Mapping[str, PageClaim], tenants_max: int) -> tuple[dict[str, PageClaim], dict[int, PageClaim]]:
    """The tenants that want most by name, and all others together, by tier: there as one of all their weights."""
    if len(claims) <= tenants_max:
        return dict(claims), {}
    most = heapq.nlargest(tenants_max, claims, key=lambda tenant_id: (claims[tenant_id].wanted, tenant_id))
    rest: dict[int, PageClaim] = {}
    for tenant_id in claims.keys() - set(most):
        claim = claims[tenant_id]
        others = rest.get(claim.tier, PageClaim(0, claim.tier, 0, 0))
        rest[claim.tier] = PageClaim(
            others.weight + claim.weight, claim.tier, others.held + claim.held, others.waiting + claim.waiting
        )
    return {tenant_id: claims[tenant_id] for tenant_id in most}, rest


def elsewhere_on(replica_id: str, others: Iterable[GatewayBacklog]) -> frozenset[str]:
    """Tags of the adapters that other gateways have in work on a replica."""
    return frozenset(tag for backlog in others for tag in backlog.adapters.get(replica_id, ()))


def kept_by(others: Iterable[GatewayBacklog]) -> dict[bool, frozenset[str]]:
    """Replicas that other gateways keep for somebody: from those who have less than their share (True), and from all
    others.
    """
    kept = [each for backlog in others for each in backlog.kept.items()]
    return {True: frozenset(name for name, from_all in kept if from_all), False: frozenset(name for name, _ in kept)}


def levels(claims: Iterable[PageClaim], pages: float) -> dict[int, float]:
    """Pages for each unit of weight, by tier; infinite where a tier gets all it wants. Worse tiers get what is left."""
    by_tier: dict[int, list[PageClaim]] = {}
    for claim in claims:
        if claim.wanted:
            by_tier.setdefault(claim.tier, []).append(claim)
    found: dict[int, float] = {}
    left = pages
    for tier in sorted(by_tier):
        weights = sum(claim.weight for claim in by_tier[tier])
        found[tier] = float("inf")
        for claim in sorted(by_tier[tier], key=lambda claim: claim.wanted / claim.weight):
            if claim.wanted * weights > left * claim.weight:
                found[tier] = max(0.0, left / weights)
                left = 0.0
                break
            left -= claim.wanted
            weights -= claim.weight
    return found


def divide(here: GatewayBacklog, others: Sequence[GatewayBacklog], pages: float) -> Division:
    """The division as one gateway sees it: of so many pages, between its own tenants and those of the others."""
    elsewhere = _joined(others)
    everywhere = dict(elsewhere)
    own = _keyed(here, 0)
    for tenant_id, claim in own.items():
        everywhere[tenant_id] = claim.joined(everywhere[tenant_id]) if tenant_id in everywhere else claim
    level = levels(everywhere.values(), pages)
    parts = {
        tenant_id: max(PART_MIN, 1 - claim.wanted / all_of_it.wanted)
        for tenant_id, claim in elsewhere.items()
        if (all_of_it := everywhere[tenant_id]).wanted > level.get(all_of_it.tier, 0.0) * all_of_it.weight
    }
    waiting = [backlog for backlog in others if backlog.waiting_tiers]
    if not waiting or all(each == float("inf") for each in level.values()):
        return Division(parts=parts, elsewhere=elsewhere)
    shares = {
        tenant_id: min(claim.wanted, level[claim.tier] * claim.weight)
        for tenant_id, claim in everywhere.items()
        if claim.wanted
    }
    return Division(
        share=sum(
            shares[tenant_id] * claim.wanted / everywhere[tenant_id].wanted
            for tenant_id, claim in own.items()
            if claim.wanted
        ),
        fill=sum(claim.held for claim in everywhere.values()) / max(1.0, sum(shares.values())),
        rank_least=min(backlog.rank_least for backlog in waiting),
        tier_least=min(min(backlog.waiting_tiers) for backlog in waiting),
        parts=parts,
        elsewhere=elsewhere,
    )


def _keyed(backlog: GatewayBacklog, number: int) -> dict[str, PageClaim]:
    """All claims of one gateway; those of unnamed tenants under keys that are no tenant's and no other gateway's."""
    return backlog.tenants | {f"\0{number} {tier}": claim for tier, claim in backlog.rest.items()}


def _joined(backlogs: Iterable[GatewayBacklog]) -> dict[str, PageClaim]:
    found: dict[str, PageClaim] = {}
    for number, backlog in enumerate(backlogs, start=1):
        for tenant_id, claim in _keyed(backlog, number).items():
            found[tenant_id] = claim.joined(found[tenant_id]) if tenant_id in found else claim
    return found


class GatewayShare:
    """One gateway's pages in one pool."""

    def __init__(self) -> None:
        self.division = Division()
        self._owed = 0.0  # page-seconds held beyond the share; below 0 what was left to others
        self._since = 0.0

    @property
    def bounded(self) -> bool:
        """Whether others wait for what this gateway leaves."""
        return self.division.share is not None

    def divide(self, division: Division, held: int, now_s: float) -> None:
        """The pool is divided anew; this gateway has had ``held`` pages in work until now."""
        last = self.division
        if last.share is None or division.share is None:
            self._owed = 0.0
        else:
            most = last.share * _OWED_MAX_S
            owed = self._owed + (held - last.share * last.fill) * (now_s - self._since)
            self._owed = max(-most, min(most, owed))
        self.division, self._since = division, now_s

    def allows(self, held: int, pages: int, *, overdue: bool = False) -> bool:
        """Whether this gateway, with ``held`` pages in work, may take so many more; for who is overdue it may owe."""
        share = self.division.share
        return share is None or held + pages <= share or (held < share and (overdue or self._owed <= 0))
