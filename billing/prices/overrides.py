"""Prices of a tenant's own, which replace those of its plan for a time. They are price versions like any other, so a
record names them, and gateways hold by them once they are published.
"""

from collections.abc import Collection
from datetime import datetime
from itertools import takewhile
from typing import Annotated

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.locks import serialize_decision
from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.prices.models import PriceOverride, PriceVersion
from billing.prices.price_book import PriceView
from core import fields
from core.db import among, database_now
from core.errors import InvalidRequest, NotFound
from core.fields import about
from core.ids import new_id
from core.periods import TICK, aware
from core.struct_types import view_of


class OverrideView(msgspec.Struct, frozen=True, kw_only=True):
    """A price override. Without ``prices``, the plan's hold again from ``effective_from`` on."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    price_version_id: Annotated[str | None, about("Id of the price version; null where the plan's prices hold again.")]
    prices: Annotated[PriceCard | None, about("The prices; null where the plan's hold again.")]
    effective_from: Annotated[datetime, fields.EFFECTIVE_FROM]
    expires_at: Annotated[datetime | None, fields.EXPIRES_AT]
    created_at: Annotated[datetime, fields.CREATED_AT]


def add(
    session: Session,
    *,
    tenant_id: str,
    card: PriceCard,
    effective_from: datetime | None = None,
    expires_at: datetime | None = None,
) -> OverrideView:
    """Let a tenant have prices of its own from an instant, or from now, until ``expires_at``, or until further notice.
    They replace overrides of that time. Raises as ``price_book.add_version`` does, and InvalidRequest for an expiry
    that is not later than the beginning.
    """
    serialize_decision(session, f"price overrides of tenant {tenant_id}")
    begins = database_now(session) if effective_from is None else aware(effective_from, "effective_from")
    expires_at = None if expires_at is None else aware(expires_at, "expires_at")
    if expires_at is not None and expires_at <= begins:
        raise InvalidRequest(
            f"expires_at: must be later than effective_from, {begins.isoformat()}.", param="expires_at"
        )
    # The tenant's id stands for a plan of its own, so versions of plans and of tenants never meet.
    version = price_book.add_version(
        session, plan_id=tenant_id, card=card, effective_from=effective_from, first_since_epoch=False
    )
    return _insert(session, tenant_id, version, version.effective_from, expires_at)


def end(session: Session, *, tenant_id: str) -> OverrideView:
    """Let the plan's prices hold again from now on, and cancel overrides that begin later. Raises NotFound when the
    tenant has none.
    """
    serialize_decision(session, f"price overrides of tenant {tenant_id}")
    now = database_now(session)
    since_end = takewhile(lambda each: each.prices is not None, reversed(list_overrides(session, tenant_id)))
    if not any(each.expires_at is None or each.expires_at > now for each in since_end):
        raise NotFound("The tenant has no prices of its own.", code="price_override_not_found")
    return _insert(session, tenant_id, None, now, None)


def list_overrides(session: Session, tenant_id: str) -> list[OverrideView]:
    """All overrides of a tenant, in the order in which they were made. Of those that overlap, the last one holds."""
    rows = session.exec(
        select(PriceOverride, PriceVersion)
        .join(PriceVersion, col(PriceVersion.id) == col(PriceOverride.price_version_id), isouter=True)
        .where(PriceOverride.tenant_id == tenant_id)
        .order_by(col(PriceOverride.created_at), col(PriceOverride.id))
    )
    return [_view(row, None if version is None else price_book.view(version)) for row, version in rows]


def in_force(session: Session, tenant_ids: Collection[str]) -> dict[str, PriceView]:
    """The price versions of now of those of these tenants that have prices of their own."""
    now = database_now(session)
    rows = session.exec(
        select(PriceOverride, PriceVersion)
        .join(PriceVersion, col(PriceVersion.id) == col(PriceOverride.price_version_id), isouter=True)
        .where(
            among(col(PriceOverride.tenant_id), tenant_ids),
            col(PriceOverride.effective_from) <= now,
            col(PriceOverride.expires_at).is_(None) | (col(PriceOverride.expires_at) > now),
        )
        .order_by(col(PriceOverride.created_at), col(PriceOverride.id))
    )
    newest = {row.tenant_id: version for row, version in rows}
    return {tenant_id: price_book.view(version) for tenant_id, version in newest.items() if version is not None}


def changed_between(session: Session, after: datetime | None, until: datetime) -> set[tuple[str, datetime]]:
    """The tenants of which an override has begun later than it was made, or expired, between these instants; and
    when.
    """
    begun = (col(PriceOverride.effective_from) <= until) & (
        col(PriceOverride.effective_from) > col(PriceOverride.created_at)
    )
    expired = col(PriceOverride.expires_at) <= until
    if after is not None:
        begun &= col(PriceOverride.effective_from) > after
        expired &= col(PriceOverride.expires_at) > after
    begins = session.exec(select(PriceOverride.tenant_id, PriceOverride.effective_from).where(begun))
    ends = session.exec(select(PriceOverride.tenant_id, PriceOverride.expires_at).where(expired))
    return set(begins) | {(tenant_id, at) for tenant_id, at in ends if at is not None}


def _insert(
    session: Session, tenant_id: str, version: PriceView | None, begins: datetime, expires_at: datetime | None
) -> OverrideView:
    # A database clock that was set back must not order this override before the last one.
    newest = session.exec(
        select(sa.func.max(PriceOverride.created_at)).where(PriceOverride.tenant_id == tenant_id)
    ).one()
    now = database_now(session)
    row = PriceOverride(
        id=new_id("po"),
        tenant_id=tenant_id,
        price_version_id=None if version is None else version.id,
        effective_from=begins,
        expires_at=expires_at,
        created_at=now if newest is None else max(now, newest + TICK),
    )
    session.add(row)
    session.flush()
    return _view(row, version)


def _view(row: PriceOverride, version: PriceView | None) -> OverrideView:
    return view_of(row, OverrideView, prices=None if version is None else version.card)
