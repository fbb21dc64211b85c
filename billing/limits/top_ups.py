"""Decides when credit is bought for a tenant by itself. The payment is another room's work, behind ``TopUpPayments``.

It is off until a tenant has asked for it with an amount and a monthly cap, and buying credit by hand never turns it on.
Credit is granted only after a payment succeeded (``billing.credits.lots.grant``).
"""

from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from sqlmodel import Session

from billing.limits.views import AutoTopUp

RETRY_AFTER: Final = timedelta(days=1)


class TopUpStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What was bought for a tenant by itself: whether a payment is on its way or waits for the card's owner, what was
    paid in this UTC month, in which payments on their way count, and when one last failed.
    """

    in_flight: bool = False
    month_cents: int = 0
    failed_at: datetime | None = None


class TopUpPayments(Protocol):
    """The seam to payments. Both are part of the caller's transaction, which holds the tenant's subscription."""

    def standing(self, session: Session, tenant_id: str) -> TopUpStanding:
        """What was bought for the tenant by itself."""

    def start(self, session: Session, tenant_id: str, amount_cents: int) -> None:
        """Queue one payment of this amount."""


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
