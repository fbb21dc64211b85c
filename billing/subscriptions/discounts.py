"""Grants discounts and coupons to tenants, and ends them. A grant never changes."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from sqlmodel import Session, col, select

from billing.locks import serialize_decision
from billing.subscriptions.models import Discount, DiscountEnd
from core import fields
from core.db import database_now
from core.errors import Conflict, InvalidRequest, NotFound
from core.fields import about
from core.ids import new_id
from core.periods import aware
from core.struct_types import view_of

DiscountScope = Literal["usage", "fees", "all"]
Duration = Literal["once", "periods", "forever"]


class DiscountTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A discount of a tenant, in percent or as an amount. ``ends`` is its expiry, or when it was ended before."""

    id: str
    name: str
    percent_hundredths: int | None = None
    amount_nanos: int | None = None
    duration: Literal["once", "periods", "forever"]
    periods: int | None = None
    begins: datetime
    ends: datetime | None = None
    scope: DiscountScope = "all"


class NewDiscount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A discount to grant: ``percent_hundredths`` (1,000 is 10 %) or ``amount_nanos``.

    ``once``: for one charge, an amount until it is used up. ``periods``: in that many billing periods. ``forever``: in
    all. It applies to periods that end after ``effective_from`` and not after ``expires_at``. It lowers usage (with
    storage, pins and cold loads), fees, or all of them.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=120, pattern=fields.ONE_LINE), fields.NAME]
    percent_hundredths: Annotated[Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None, fields.PERCENT_HUNDREDTHS] = (
        None
    )
    amount_nanos: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000_000)] | None, fields.DISCOUNT_NANOS
    ] = None
    scope: Annotated[DiscountScope, fields.DISCOUNT_SCOPE] = "all"
    duration: Annotated[Duration, fields.DURATION] = "forever"
    periods: Annotated[Annotated[int, msgspec.Meta(ge=1, le=1_200)] | None, fields.PERIODS] = None
    effective_from: Annotated[
        Annotated[datetime, msgspec.Meta(tz=True)] | None, about("From when on it applies; null for now.")
    ] = None
    expires_at: Annotated[Annotated[datetime, msgspec.Meta(tz=True)] | None, fields.EXPIRES_AT] = None


class DiscountView(msgspec.Struct, frozen=True, kw_only=True):
    """A granted discount. ``ended_at`` is when an admin ended it."""

    id: Annotated[str, fields.ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    name: Annotated[str, fields.NAME]
    percent_hundredths: Annotated[int | None, fields.PERCENT_HUNDREDTHS]
    amount_nanos: Annotated[int | None, fields.DISCOUNT_NANOS]
    scope: Annotated[DiscountScope, fields.DISCOUNT_SCOPE]
    duration: Annotated[Duration, fields.DURATION]
    periods: Annotated[int | None, fields.PERIODS]
    effective_from: Annotated[datetime, about("From when on it applies.")]
    expires_at: Annotated[datetime | None, fields.EXPIRES_AT]
    ended_at: Annotated[datetime | None, fields.ENDED_AT]
    created_at: Annotated[datetime, fields.CREATED_AT]


def grant(session: Session, tenant_id: str, new: NewDiscount) -> DiscountView:
    """Grant a discount. Raises InvalidRequest, naming the field, where it contradicts itself or begins in the past."""
    if (new.percent_hundredths is None) == (new.amount_nanos is None):
        raise InvalidRequest("amount_nanos: give either this or percent_hundredths.", param="amount_nanos")
    if (new.duration == "periods") != (new.periods is not None):
        raise InvalidRequest('periods: belongs to the duration "periods", and only to it.', param="periods")
    serialize_decision(session, f"discounts of tenant {tenant_id}")
    now = database_now(session)
    begins = now if new.effective_from is None else aware(new.effective_from, "effective_from")
    if begins < now:
        raise InvalidRequest(
            f"effective_from is {begins.isoformat()}, in the past; leave it out to begin now.", param="effective_from"
        )
    expires_at = None if new.expires_at is None else aware(new.expires_at, "expires_at")
    if expires_at is not None and expires_at <= begins:
        raise InvalidRequest("expires_at: must be later than effective_from.", param="expires_at")
    row = Discount(
        **msgspec.structs.asdict(new) | {"effective_from": begins, "expires_at": expires_at},
        id=new_id("dis"),
        tenant_id=tenant_id,
        created_at=now,
    )
    session.add(row)
    session.flush()
    return view_of(row, DiscountView, ended_at=None)


def end(session: Session, tenant_id: str, discount_id: str) -> DiscountView:
    """End a discount now: the running period has none of it. Raises NotFound, and Conflict when it has ended."""
    serialize_decision(session, f"discounts of tenant {tenant_id}")
    found = next((each for each in list_discounts(session, tenant_id) if each.id == discount_id), None)
    if found is None:
        raise NotFound("Discount not found.", code="discount_not_found")
    if found.ended_at is not None:
        raise Conflict(f"The discount ended at {found.ended_at.isoformat()}.", code="discount_ended")
    ended_at = database_now(session)
    session.add(DiscountEnd(discount_id=discount_id, ended_at=ended_at))
    session.flush()
    return msgspec.structs.replace(found, ended_at=ended_at)


def list_discounts(session: Session, tenant_id: str) -> list[DiscountView]:
    """All discounts of a tenant, in the order of granting, which is the order in which they apply."""
    rows = session.exec(
        select(Discount, DiscountEnd.ended_at)
        .join(DiscountEnd, col(DiscountEnd.discount_id) == col(Discount.id), isouter=True)
        .where(Discount.tenant_id == tenant_id)
        .order_by(col(Discount.created_at), col(Discount.id))
    )
    return [view_of(row, DiscountView, ended_at=ended_at) for row, ended_at in rows]


def read_discounts(session: Session, tenant_id: str) -> list[DiscountTerms]:
    """The same as a charge needs them."""
    return [
        view_of(
            each,
            DiscountTerms,
            begins=each.effective_from,
            ends=min((instant for instant in (each.expires_at, each.ended_at) if instant is not None), default=None),
        )
        for each in list_discounts(session, tenant_id)
    ]
