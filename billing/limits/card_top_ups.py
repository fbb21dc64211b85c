"""Buys credit for ``top_ups`` with the tenant's saved card, through the queue of payments.

Only the payments that this module started count: what an owner buys by hand is not bounded by the cap.
"""

from typing import Final

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.limits.top_ups import TopUpStanding
from billing.payments import outbox
from billing.payments.models import TopUp
from billing.payments.operations import ChargeTopUp
from billing.periods import month_start
from core.db import database_now
from core.ids import new_id

_PREFIX: Final = "atu_"


class CardTopUps:
    """The seam ``TopUpPayments``."""

    def standing(self, session: Session, tenant_id: str) -> TopUpStanding:
        """What was bought by itself: a payment that failed, or that waits for the card's owner, may be repeated."""
        own = (TopUp.tenant_id == tenant_id, col(TopUp.id).startswith(_PREFIX, autoescape=True))
        pending = select(sa.func.count()).where(*own, TopUp.state == "pending")
        counted = select(sa.cast(sa.func.coalesce(sa.func.sum(TopUp.amount_cents), 0), sa.BigInteger)).where(
            *own,
            col(TopUp.state).in_(("pending", "paid")),
            col(TopUp.created_at) >= month_start(database_now(session)),
        )
        failed = select(sa.func.max(TopUp.created_at)).where(*own, col(TopUp.state).in_(("failed", "needs_owner")))
        return TopUpStanding(
            in_flight=session.exec(pending).one() > 0,
            month_cents=session.exec(counted).one(),
            failed_at=session.exec(failed).one(),
        )

    def start(self, session: Session, tenant_id: str, amount_cents: int) -> None:
        """Queue one payment. Its money becomes credit when it has arrived."""
        outbox.enqueue(session, tenant_id, ChargeTopUp(top_up_id=new_id("atu"), amount_cents=amount_cents))
