"""How an attempt to deliver ended, when it is repeated, and when it has failed for good. Pure functions over instants
and counts.
"""

from datetime import datetime, timedelta

import msgspec

from billing.notifications.settings import DeliverySettings
from core import leases


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended. ``error`` is None for success, and written for the tenant. ``gone`` asks never to send
    again. ``retry_after_s`` is the pause that the receiver asked for.
    """

    error: str | None = None
    gone: bool = False
    retry_after_s: int | None = None


def next_attempt(
    tries: int,
    *,
    now: datetime,
    queued_at: datetime,
    retry_after_s: int | None,
    chance_permille: int,
    settings: DeliverySettings,
) -> datetime | None:
    """When to try again after the attempt number ``tries`` failed at ``now``, or None if the time for retries is over.

    The last attempt is at the end of that time exactly. A receiver may ask for a longer pause (``Retry-After``), up to
    the longest one.
    """
    end = queued_at + timedelta(seconds=settings.notifications_retry_s)
    if now >= end:
        return None
    pause = leases.pause(
        tries,
        first_ms=settings.notifications_retry_first_ms,
        longest_ms=settings.notifications_retry_longest_ms,
        chance_permille=chance_permille,
    )
    asked_ms = min((retry_after_s or 0) * 1_000, settings.notifications_retry_longest_ms)
    return min(end, now + max(pause, timedelta(milliseconds=asked_ms)))
