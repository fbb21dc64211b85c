"""Which alerts a change of spend, balance, debt or commitment raises. Pure functions over amounts before and after it.

A change that jumps over several thresholds raises each of them, in the order in which they lie. Each alert has a key,
so that ``outbox.raise_alerts`` writes it once in its period, however often the change is looked at. Amounts are
nanodollars.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from billing.notifications.event_types import (
    BALANCE_LOW,
    COMMITMENT_THRESHOLD,
    CREDIT_LIMIT_THRESHOLD,
    SPEND_THRESHOLD,
)
from core.periods import Period

PERCENTS: Final = (50, 80, 100)
FLOORS_MAX: Final = 10


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One notification to write."""

    event_type: str
    data: dict[str, Any]  # JSON
    dedupe_key: str


def crossed_percents(*, before_nanos: int, after_nanos: int, limit_nanos: int) -> list[int]:
    """The percentages of the limit that ``before`` lies below and ``after`` does not, ascending. A limit of 0 has none:
    nothing was spent of it.
    """
    if limit_nanos <= 0:
        return []
    return [percent for percent in PERCENTS if before_nanos * 100 < percent * limit_nanos <= after_nanos * 100]


def crossed_floors(*, before_nanos: int, after_nanos: int, floors_nanos: Iterable[int]) -> list[int]:
    """The floors that ``before`` lies above and ``after`` does not, descending: in the order of falling."""
    return [floor for floor in sorted(set(floors_nanos), reverse=True) if after_nanos <= floor < before_nanos]


def spend_alerts(
    *,
    scope_id: str,
    scope: str,
    period: Period,
    before_nanos: int,
    after_nanos: int,
    limit_nanos: int,
) -> list[Alert]:
    """The alerts of a growing spend. ``scope_id`` names the limited thing and its kind of period, such as
    ``tn_…:month`` or ``key_…:day``; ``scope`` names it for people.

    The key holds the limit too: after the limit is lowered, its thresholds count again. To alert on a limit that was
    lowered below what is spent, pass 0 as ``before_nanos``; after it was raised, what was spent then.
    """
    return [
        Alert(
            event_type=SPEND_THRESHOLD,
            data={
                "scope": scope,
                "percent": percent,
                "spent_nanos": after_nanos,
                "limit_nanos": limit_nanos,
                **_bounds(period),
            },
            dedupe_key=f"{spend_key(scope_id, period)}{limit_nanos}:{percent}",
        )
        for percent in crossed_percents(before_nanos=before_nanos, after_nanos=after_nanos, limit_nanos=limit_nanos)
    ]


def spend_key(scope_id: str, period: Period) -> str:
    """How the keys of the alerts of one limit begin in a period."""
    return f"spend:{scope_id}:{_start(period)}:"


def balance_alerts(*, before_nanos: int, after_nanos: int, floors_nanos: Sequence[int], since: str) -> list[Alert]:
    """The alerts of a falling balance. ``since`` names what last raised it, such as the newest top-up: a floor is
    reported once for each.
    """
    assert len(floors_nanos) <= FLOORS_MAX, f"at most {FLOORS_MAX} floors"
    return [
        Alert(
            event_type=BALANCE_LOW,
            data={"balance_nanos": after_nanos, "floor_nanos": floor},
            dedupe_key=f"balance:{since}:{floor}",
        )
        for floor in crossed_floors(before_nanos=before_nanos, after_nanos=after_nanos, floors_nanos=floors_nanos)
    ]


def credit_limit_alerts(*, before_nanos: int, after_nanos: int, limit_nanos: int, since: str) -> list[Alert]:
    """The alerts of a growing debt: usage that is not invoiced, and unpaid invoices. ``since`` names the last change of
    the invoices' part, such as a payment: a threshold is reported once for each.
    """
    return [
        Alert(
            event_type=CREDIT_LIMIT_THRESHOLD,
            data={"percent": percent, "used_nanos": after_nanos, "limit_nanos": limit_nanos},
            dedupe_key=f"credit-limit:{since}:{limit_nanos}:{percent}",
        )
        for percent in crossed_percents(before_nanos=before_nanos, after_nanos=after_nanos, limit_nanos=limit_nanos)
    ]


def commitment_alerts(
    *,
    period: Period,
    before_nanos: int,
    after_nanos: int,
    commitment_nanos: int,
) -> list[Alert]:
    """The alerts of usage that counts towards a commitment."""
    return [
        Alert(
            event_type=COMMITMENT_THRESHOLD,
            data={
                "percent": percent,
                "used_nanos": after_nanos,
                "commitment_nanos": commitment_nanos,
                **_bounds(period),
            },
            dedupe_key=f"commitment:{_start(period)}:{commitment_nanos}:{percent}",
        )
        for percent in crossed_percents(
            before_nanos=before_nanos, after_nanos=after_nanos, limit_nanos=commitment_nanos
        )
    ]


def _start(period: Period) -> str:
    return period.start.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _bounds(period: Period) -> dict[str, str]:
    def shown(instant: datetime) -> str:
        return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")

    return {"period_start": shown(period.start), "period_end": shown(period.end)}
