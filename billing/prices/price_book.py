"""The price book: price versions of a plan and plan assignments of a tenant, each effective from a date. Both are
append-only and only for the future, so rating a record again gives the same amount.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from sqlmodel import Session, col, select

from billing.locks import serialize_decision
from billing.periods import EPOCH, aware
from billing.prices import card as price_card
from billing.prices.card import PriceCard
from billing.prices.models import PlanAssignment, PriceVersion
from billing.views import PriceView
from core import clock
from core.contracts.usage import UsageEvent
from core.db import database_now
from core.errors import Conflict, InvalidRequest
from core.ids import new_id


class EventPrice(NamedTuple):
    """The price of an event. ``stale``: the event named a version that was not in force any more, or not yet."""

    version: PriceView
    stale: bool = False


class PriceBook:
    """The prices of some tenants, read once. Lookups need no database."""

    def __init__(
        self, assignments: Mapping[str, Sequence[PlanAssignment]], versions: Mapping[str, Sequence[PriceView]]
    ) -> None:
        """Both sequences are sorted by ``effective_from``."""
        self._assignments = assignments
        self._versions = versions
        self._by_id = {version.id: version for held in versions.values() for version in held}

    def of(self, event: UsageEvent, *, age_max: timedelta) -> EventPrice | None:
        """The price of an event: that of the version it names, if the version was in force for the tenant when the
        request was admitted or at most ``age_max`` before, since a gateway may serve from a snapshot of that age.
        Otherwise the version in force at admission, marked as ``stale``. None when there is none.
        """
        admitted = clock.from_ms(event.started_at_ms)
        named = self._by_id.get(event.price_version_id or "")
        if named is not None and self._was_in_force(event.tenant_id, named, admitted - age_max, admitted):
            return EventPrice(named)
        price = self.in_force(event.tenant_id, admitted)
        return None if price is None else EventPrice(price, stale=event.price_version_id is not None)

    def has_tiers(self, tenant_id: str) -> bool:
        """Whether any version of a plan that the tenant has or had charges by tiers."""
        plans = {each.plan_id for each in self._assignments.get(tenant_id, ())}
        return any(version.card.tiers for plan_id in plans for version in self._versions.get(plan_id, ()))

    def _was_in_force(self, tenant_id: str, version: PriceView, since: datetime, until: datetime) -> bool:
        """Whether the tenant had this version at an instant from ``since`` to ``until``, both inclusive."""
        siblings = self._versions[version.plan_id]
        position = siblings.index(version) + 1
        replaced = siblings[position].effective_from if position < len(siblings) else None
        assignments = self._assignments.get(tenant_id, ())
        for index, assignment in enumerate(assignments):
            if assignment.plan_id != version.plan_id:
                continue
            left = assignments[index + 1].effective_from if index + 1 < len(assignments) else None
            begins = max(assignment.effective_from, version.effective_from)
            ends = min((end for end in (replaced, left) if end is not None), default=None)
            if begins <= until and (ends is None or (begins < ends and since < ends)):
                return True
        return False

    def in_force(self, tenant_id: str, at: datetime) -> PriceView | None:
        """The version in force ``at`` that instant, of the plan that the tenant had then. None when there is none."""
        assignments = self._assignments.get(tenant_id, ())
        position = bisect_right(assignments, at, key=lambda assignment: assignment.effective_from)
        if position == 0:
            return None
        versions = self._versions.get(assignments[position - 1].plan_id, ())
        position = bisect_right(versions, at, key=lambda version: version.effective_from)
        return versions[position - 1] if position else None


def load(session: Session, tenant_ids: Iterable[str]) -> PriceBook:
    """The price book of these tenants."""
    assignments: dict[str, list[PlanAssignment]] = defaultdict(list)
    for assignment in session.exec(
        select(PlanAssignment)
        .where(col(PlanAssignment.tenant_id).in_(set(tenant_ids)))
        .order_by(col(PlanAssignment.effective_from))
    ):
        assignments[assignment.tenant_id].append(assignment)
    plan_ids = {assignment.plan_id for held in assignments.values() for assignment in held}
    versions: dict[str, list[PriceView]] = defaultdict(list)
    for version in session.exec(
        select(PriceVersion).where(col(PriceVersion.plan_id).in_(plan_ids)).order_by(col(PriceVersion.effective_from))
    ):
        versions[version.plan_id].append(_view(version))
    return PriceBook(assignments, versions)


def versions_by_id(session: Session, version_ids: Collection[str]) -> dict[str, PriceView]:
    """The price versions with these ids."""
    found = session.exec(select(PriceVersion).where(col(PriceVersion.id).in_(version_ids)))
    return {version.id: _view(version) for version in found}


def add_version(
    session: Session, *, plan_id: str, card: PriceCard, effective_from: datetime | None = None
) -> PriceView:
    """Add a version. Without an instant it starts now, or at the epoch when it is the plan's first: the plan has rated
    nothing before, and a gateway's clock that lags a little must not leave a request without a price.

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
    others = session.exec(select(PriceVersion.effective_from).where(PriceVersion.plan_id == plan_id)).all()
    begins = effective_from or (now if others else EPOCH)
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
    return _view(version)


def list_versions(session: Session, *, plan_id: str) -> list[PriceView]:
    """Every version of a plan, the latest ``effective_from`` first."""
    statement = (
        select(PriceVersion).where(PriceVersion.plan_id == plan_id).order_by(col(PriceVersion.effective_from).desc())
    )
    return [_view(version) for version in session.exec(statement)]


def assign_plan(session: Session, *, tenant_id: str, plan_id: str) -> None:
    """Price the tenant by ``plan_id`` from now on. A tenant's first plan applies since the epoch, like a plan's first
    version. Assigning the plan that the tenant has changes nothing.
    """
    serialize_decision(session, f"plan of tenant {tenant_id}")
    current = session.exec(
        select(PlanAssignment)
        .where(PlanAssignment.tenant_id == tenant_id)
        .order_by(col(PlanAssignment.effective_from).desc())
        .limit(1)
    ).first()
    if current is not None and current.plan_id == plan_id:
        return
    now = database_now(session)
    begins = EPOCH
    if current is not None:
        # A database clock that was set back must not order this assignment before the last one.
        begins = max(now, current.effective_from + timedelta(microseconds=1))
    session.add(PlanAssignment(tenant_id=tenant_id, plan_id=plan_id, effective_from=begins, created_at=now))
    session.flush()


def _view(version: PriceVersion) -> PriceView:
    return PriceView(
        id=version.id,
        plan_id=version.plan_id,
        card=msgspec.convert(version.card, PriceCard),
        effective_from=version.effective_from,
        created_at=version.created_at,
    )
