"""How an attempt to deliver ended, when it is repeated, and when it has failed for good. Pure functions over instants
and counts.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from billing.notifications.settings import DeliverySettings

_DOUBLINGS_MAX: Final = 40  # far above what the longest pause allows; keeps the power small
PERMILLE: Final = 1_000


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended. ``error`` is None for success, and written for the tenant. ``gone`` asks never to send
    again. ``retry_after_s`` is the pause that the receiver asked for.
    """

    error: str | None = None
    gone: bool = False
    retry_after_s: int | None = None


def pause_ms(tries: int, *, first_ms: int, longest_ms: int, chance_permille: int) -> int:
    """Milliseconds from attempt number ``tries`` to the next: doubling from ``first_ms`` up to ``longest_ms``, and
    between a half and the whole of that by chance (0 to 1,000), so that many deliveries do not come back at once.
    """
    whole = min(longest_ms, first_ms << min(tries - 1, _DOUBLINGS_MAX))
    return whole - whole * chance_permille // (2 * PERMILLE)


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
    pause = pause_ms(
        tries,
        first_ms=settings.notifications_retry_first_ms,
        longest_ms=settings.notifications_retry_longest_ms,
        chance_permille=chance_permille,
    )
    asked = min((retry_after_s or 0) * 1_000, settings.notifications_retry_longest_ms)
    return min(end, now + timedelta(milliseconds=max(pause, asked)))
