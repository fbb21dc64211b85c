"""Buys credit with the saved card when ``billing.limits`` asks for it: one payment at a time. The caller holds the
tenant's subscription.
"""

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.limits.top_ups import TopUpStanding
from billing.payments import outbox
from billing.payments.models import PaymentOperation, TopUp
from billing.payments.operations import ChargeTopUp
from core.db import database_now
from core.ids import new_id

_COUNTED = ("pending", "paid")
_FAILED = ("failed", "needs_owner")  # without its owner the card cannot confirm a payment, so it has failed


class AutoTopUps:
    """The payments behind automatic top-ups. Credit is added once a payment has succeeded."""

    def standing(self, session: Session, tenant_id: str) -> TopUpStanding:
        """What was bought for the tenant by itself in this UTC month, and whether a payment is on its way."""
        now = database_now(session).astimezone(UTC)
        month = datetime(now.year, now.month, 1, tzinfo=UTC)
        automatic = sa.exists().where(
            col(PaymentOperation.tenant_id) == tenant_id,
            col(PaymentOperation.dedupe_key) == sa.func.concat("top_up:", col(TopUp.id)),
        )
        rows = session.exec(select(TopUp).where(TopUp.tenant_id == tenant_id, automatic, self._recent(month))).all()
        failed = [row.created_at for row in rows if row.state in _FAILED]
        return TopUpStanding(
            in_flight=any(row.state == "pending" for row in rows),
            month_cents=sum(row.amount_cents for row in rows if row.state in _COUNTED and row.created_at >= month),
            failed_at=max(failed, default=None),
        )

    def start(self, session: Session, tenant_id: str, amount_cents: int) -> None:
        """Queue one payment of this amount."""
        outbox.enqueue(session, tenant_id, ChargeTopUp(top_up_id=new_id("top"), amount_cents=amount_cents))

    def _recent(self, month: datetime) -> sa.ColumnElement[bool]:
        """Those of the month, and older ones that are not decided or have failed."""
        return sa.or_(col(TopUp.created_at) >= month, col(TopUp.state) != "paid")
