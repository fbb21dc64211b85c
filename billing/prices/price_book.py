"""The price book: price versions of a plan and plan assignments of a tenant, each effective from a date. Both are
append-only and only for the future, so rating a record again gives the same amount.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.locks import serialize_decision
from billing.prices import card as price_card
from billing.prices.card import PriceCard
from billing.prices.models import PlanAssignment, PriceOverride, PriceVersion, WithdrawnPriceVersion
from core import clock
from core.contracts.usage import UsageEvent
from core.db import database_now
from core.errors import Conflict, InvalidRequest, NotFound
from core.ids import new_id
from core.periods import EPOCH, TICK, aware
from core.struct_types import view_of

_WITHDRAWN_BEFORE: Final = timedelta(seconds=60)


class PriceView(msgspec.Struct, frozen=True, kw_only=True):
    """A price version of a plan. ``effective_from`` of a plan's first version is the epoch."""

    id: str
    plan_id: str
    card: PriceCard
    effective_from: datetime
    created_at: datetime


class PriceSpan(NamedTuple):
    """The version in force for a tenant from an instant on, until the next span. None: there was no price."""

    begins: datetime
    version: PriceView | None


class PriceBook:
    """The prices of some tenants, read once. Lookups need no database."""

    def __init__(
        self,
        assignments: Mapping[str, Sequence[PlanAssignment]],
        versions: Mapping[str, Sequence[PriceView]],
        overrides: Mapping[str, Sequence[PriceOverride]] | None = None,
    ) -> None:
        """The first two are sorted by ``effective_from``, the overrides and assignments of one instant by
        ``created_at``.
        """
        self._assignments = assignments
        self._versions = versions
        self._overrides = overrides or {}
        self._by_id = {version.id: version for held in versions.values() for version in held}
        self._spans: dict[str, tuple[PriceSpan, ...]] = {}

    def of(self, event: UsageEvent, *, age_max: timedelta) -> PriceView | None:
        """The price of an event: that of the version it names, if the version was in force for the tenant when the
        request was admitted or at most ``age_max`` before, since a gateway may serve from a snapshot of that age.
        Otherwise the version in force at admission. None when there is none.
        """
        admitted = clock.from_ms(event.started_at_ms)
        named = self._by_id.get(event.price_version_id or "")
        if named is not None and self._was_in_force(event.tenant_id, named, admitted - age_max, admitted):
            return named
        return self.in_force(event.tenant_id, admitted)

    def has_corrections(self, tenant_id: str) -> bool:
        """Whether any version that the tenant has or had makes usage cheaper than it is recorded, or charges for
        resources, which no record has.
        """
        versions = (span.version for span in self.spans(tenant_id))
        cards = (version.card for version in versions if version is not None)
        return any(card.tiers or card.included or card.has_resource_prices for card in cards)

    def in_force(self, tenant_id: str, at: datetime) -> PriceView | None:
        """The version in force ``at`` that instant: the tenant's own, else that of the plan that the tenant had then.
        None when there is none.
        """
        spans = self.spans(tenant_id)
        position = bisect_right(spans, at, key=lambda span: span.begins)
        return spans[position - 1].version if position else None

    def spans(self, tenant_id: str) -> tuple[PriceSpan, ...]:
        """What was, is and will be in force for a tenant, in order; neighbors differ."""
        if tenant_id not in self._spans:
            self._spans[tenant_id] = tuple(self._read_spans(tenant_id))
        return self._spans[tenant_id]

    def joined(self, tenant_id: str) -> datetime | None:
        """When the tenant got its first plan."""
        return min((each.created_at for each in self._assignments.get(tenant_id, ())), default=None)

    @property
    def versions_by_id(self) -> Mapping[str, PriceView]:
        """All versions in this book."""
        return self._by_id

    def _read_spans(self, tenant_id: str) -> Iterator[PriceSpan]:
        assignments = self._assignments.get(tenant_id, ())
        overrides = self._overrides.get(tenant_id, ())
        borders = {each.effective_from for each in assignments} | {each.effective_from for each in overrides}
        borders |= {each.expires_at for each in overrides if each.expires_at is not None}
        for plan_id in {each.plan_id for each in assignments}:
            borders |= {version.effective_from for version in self._versions.get(plan_id, ())}
        before: PriceView | None = None
        for begins in sorted(borders):
            version = self._version_at(tenant_id, begins)
            if version is not before:
                yield PriceSpan(begins, version)
            before = version

    def _version_at(self, tenant_id: str, at: datetime) -> PriceView | None:
        for override in reversed(self._overrides.get(tenant_id, ())):
            if override.effective_from <= at and (override.expires_at is None or at < override.expires_at):
                if override.price_version_id is None:
                    break
                return self._by_id[override.price_version_id]
        assignments = self._assignments.get(tenant_id, ())
        position = bisect_right(assignments, at, key=lambda assignment: assignment.effective_from)
        if position == 0:
            return None
        versions = self._versions.get(assignments[position - 1].plan_id, ())
        position = bisect_right(versions, at, key=lambda version: version.effective_from)
        return versions[position - 1] if position else None

    def _was_in_force(self, tenant_id: str, version: PriceView, since: datetime, until: datetime) -> bool:
        """Whether the tenant had this version at an instant from ``since`` to ``until``, both inclusive."""
        spans = self.spans(tenant_id)
        ends = [span.begins for span in spans[1:]]
        return any(
            span.version is version and span.begins <= until and (end is None or since < end)
            for span, end in zip_longest(spans, ends)
        )


def load(session: Session, tenant_ids: Iterable[str]) -> PriceBook:
    """The price book of these tenants."""
    tenant_ids = set(tenant_ids)
    assignments: dict[str, list[PlanAssignment]] = defaultdict(list)
    for assignment in session.exec(
        select(PlanAssignment)
        .where(col(PlanAssignment.tenant_id).in_(tenant_ids))
        .order_by(col(PlanAssignment.effective_from), col(PlanAssignment.created_at))
    ):
        assignments[assignment.tenant_id].append(assignment)
    plan_ids = {assignment.plan_id for held in assignments.values() for assignment in held}
    overrides: dict[str, list[PriceOverride]] = defaultdict(list)
    for override in session.exec(
        select(PriceOverride)
        .where(col(PriceOverride.tenant_id).in_(tenant_ids))
        .order_by(col(PriceOverride.created_at), col(PriceOverride.id))
    ):
        overrides[override.tenant_id].append(override)
    versions: dict[str, list[PriceView]] = defaultdict(list)
    for version in session.exec(
        select(PriceVersion)
        .where(col(PriceVersion.plan_id).in_(plan_ids | overrides.keys()), _not_withdrawn())
        .order_by(col(PriceVersion.effective_from))
    ):
        versions[version.plan_id].append(view(version))
    return PriceBook(assignments, versions, overrides)


def versions_by_id(session: Session, version_ids: Collection[str]) -> dict[str, PriceView]:
    """The price versions with these ids."""
    found = session.exec(select(PriceVersion).where(col(PriceVersion.id).in_(version_ids)))
    return {version.id: view(version) for version in found}


def add_version(
    session: Session,
    *,
    plan_id: str,
    card: PriceCard,
    effective_from: datetime | None = None,
    first_since_epoch: bool = True,
) -> PriceView:
    """Add a version. Without an instant it starts now, or at the epoch when it is the plan's first: the plan has rated
    nothing before, and a gateway's clock that lags a little must not leave a request without a price. A tenant's own
    prices replace others, so their first version starts now (``first_since_epoch`` False).

    Raises InvalidRequest for an incomplete card or an instant in the past, Conflict for an instant that is taken.
    """
    price_card.check(card)
    serialize_decision(session, f"prices of plan {plan_id}")
    now = database_now(session)
    if effective_from is not None:
        effective_from = aware(effective_from, "effective_from")
        if effective_from < now:
            raise InvalidRequest(
                f"effective_from is {effective_from.isoformat()}, in the past; prices change forwards only. "
                "Leave it out to change them now.",
                param="effective_from",
            )
    made = select(PriceVersion.effective_from, PriceVersion.created_at).where(PriceVersion.plan_id == plan_id)
    others = dict(session.exec(made).all())
    made_at = select(PriceVersion.effective_from).where(PriceVersion.plan_id == plan_id)
    # A database clock that was set back must not order this version before one that began when it was made.
    at_once = max([now, *(begins + TICK for begins, created_at in others.items() if begins <= created_at)])
    begins = effective_from or (at_once if others or not first_since_epoch else EPOCH)
    withdrawn_at = set(session.exec(made_at.where(~_not_withdrawn())))
    while begins in withdrawn_at:  # no two rows begin at once, also when one of them never holds
        begins += TICK
    if begins in others:
        raise Conflict(
            f"plan {plan_id} already has prices from {begins.isoformat()} on; choose another effective_from.",
            param="effective_from",
        )
    version = PriceVersion(
        id=new_id("pv"), plan_id=plan_id, effective_from=begins, created_at=now, card=msgspec.to_builtins(card)
    )
    session.add(version)
    session.flush()
    return view(version)


def withdraw(session: Session, version_id: str) -> datetime:
    """Withdraw a version before it begins, so that it never holds. Withdrawing again changes nothing. Returns when it
    was withdrawn. Raises NotFound, and Conflict for one that has begun, or begins within a minute: gateways and
    billing may have it already.
    """
    version = session.get(PriceVersion, version_id)
    if version is None:
        raise NotFound("Price version not found.", code="plan_version_not_found")
    serialize_decision(session, f"prices of plan {version.plan_id}")
    known = session.get(WithdrawnPriceVersion, version_id)
    if known is not None:
        return known.withdrawn_at
    now = database_now(session)
    if version.effective_from < now + _WITHDRAWN_BEFORE:
        raise Conflict(
            f"The version begins at {version.effective_from.isoformat()}, and can be withdrawn until "
            f"{_WITHDRAWN_BEFORE.seconds} s before. Add a version with the earlier prices instead.",
            code="plan_version_begun",
        )
    session.add(WithdrawnPriceVersion(price_version_id=version_id, withdrawn_at=now))
    session.flush()
    return now


def withdrawn(session: Session, plan_id: str) -> dict[str, datetime]:
    """When versions of a plan were withdrawn, by their ids."""
    rows = session.exec(
        select(WithdrawnPriceVersion)
        .join(PriceVersion, col(PriceVersion.id) == WithdrawnPriceVersion.price_version_id)
        .where(PriceVersion.plan_id == plan_id)
    )
    return {row.price_version_id: row.withdrawn_at for row in rows}


def _not_withdrawn() -> sa.ColumnElement[bool]:
    return ~(
        select(WithdrawnPriceVersion.price_version_id)
        .where(WithdrawnPriceVersion.price_version_id == PriceVersion.id)
        .exists()
    )


def list_versions(session: Session, *, plan_id: str) -> list[PriceView]:
    """Every version of a plan, the latest ``effective_from`` first."""
    statement = (
        select(PriceVersion).where(PriceVersion.plan_id == plan_id).order_by(col(PriceVersion.effective_from).desc())
    )
    return [view(version) for version in session.exec(statement)]


def view(version: PriceVersion) -> PriceView:
    """A version as other packages see it."""
    return view_of(version, PriceView)
