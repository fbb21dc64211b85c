"""Decides when credit is bought for a tenant by itself, and queues its payment with the saved card.

It is off until a tenant has asked for it with an amount and a monthly cap, and buying credit by hand never turns it on.
Only the payments that this module queued count: what an owner buys by hand is not bounded by the cap. Credit is granted
only after a payment succeeded.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.limits import ceilings
from billing.limits.spending_settings import top_up_of
from billing.limits.views import AutoTopUp
from billing.notifications.outbox import notify
from billing.payments import outbox
from billing.payments.models import PaymentCharge
from billing.payments.operations import ChargeTopUp
from billing.subscriptions.billed_until import lock_subscriptions
from core.db import database_now, total, unit_of_work
from core.ids import new_id
from core.periods import month_start

RETRY_AFTER: Final = timedelta(days=1)
_PREFIX: Final = "atu_"


class TopUpStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What was bought for a tenant automatically. ``in_flight``: a payment is on its way. ``month_cents``: the payments
    of this UTC month, made or on their way. ``failed_at``: when the newest failed one began; one that waits for the
    card's owner counts as failed.
    """

    in_flight: bool = False
    month_cents: int = 0
    failed_at: datetime | None = None


def read_standing(session: Session, tenant_id: str) -> TopUpStanding:
    """What was bought for the tenant by itself. The caller holds the tenant's subscription."""
    own = (PaymentCharge.tenant_id == tenant_id, col(PaymentCharge.id).startswith(_PREFIX, autoescape=True))
    pending = select(sa.func.count()).where(*own, PaymentCharge.state == "pending")
    counted = select(total(PaymentCharge.amount_cents)).where(
        *own,
        col(PaymentCharge.state).in_(("pending", "paid")),
        col(PaymentCharge.created_at) >= month_start(database_now(session)),
    )
    failed = select(sa.func.max(PaymentCharge.created_at)).where(
        *own, col(PaymentCharge.state).in_(("failed", "needs_owner"))
    )
    return TopUpStanding(
        in_flight=session.exec(pending).one() > 0,
        month_cents=session.exec(counted).one(),
        failed_at=session.exec(failed).one(),
    )


def buy_if_due(engine: sa.Engine, tenant_id: str) -> None:
    """Queue one payment if the tenant has asked for it and it is due. Its money becomes credit when it has arrived. The
    subscription is held while that is decided, so two workers start one payment.
    """
    with unit_of_work(engine) as session:
        lock_subscriptions(session, [tenant_id])
        computed = ceilings.compute(session, tenant_id)
        asked, standing = top_up_of(computed.terms), read_standing(session, tenant_id)
        if asked is None or computed.usable_nanos > asked.floor_nanos:
            return
        if is_due(asked, standing, balance_nanos=computed.usable_nanos, now=computed.credit.now):
            outbox.enqueue(session, tenant_id, ChargeTopUp(charge_id=new_id("atu"), amount_cents=asked.amount_cents))
        elif is_capped(asked, standing) and not standing.in_flight:
            _tell_of_cap(session, tenant_id, asked, computed.credit.now)


def is_due(asked: AutoTopUp | None, standing: TopUpStanding, *, balance_nanos: int, now: datetime) -> bool:
    """Whether to buy credit now: the balance is at the floor or below, nothing is on its way, the month has room for
    the amount, and the last failure is a day ago. Pure.
    """
    if asked is None or balance_nanos > asked.floor_nanos or standing.in_flight:
        return False
    if standing.failed_at is not None and now < standing.failed_at + RETRY_AFTER:
        return False
    return not is_capped(asked, standing)


def is_capped(asked: AutoTopUp, standing: TopUpStanding) -> bool:
    """Whether the cap of the month leaves no room for one more payment. Pure."""
    return standing.month_cents + asked.amount_cents > asked.month_cents_max


def _tell_of_cap(session: Session, tenant_id: str, asked: AutoTopUp, now: datetime) -> None:
    """Tell the tenant, once for a cap in a month, that its cap stops automatic purchases of credit."""
    month = f"{month_start(now):%Y-%m}"
    notify(
        session,
        tenant_id=tenant_id,
        event_type="top_up.cap_reached",
        data={"amount_cents": asked.amount_cents, "cap_cents": asked.month_cents_max, "month": month},
        dedupe_key=f"top_up.cap_reached:{month}:{asked.month_cents_max}",
    )
