"""Reads the usage of a period by hour and model, for credits to burn. Only the hours in which a lot, or the period,
begins or ends are read from the records, and split there. So the cost is that of the hourly sums.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session, select

from billing.credits.dated_charges import UsageSlice
from billing.prices.quantities import AMOUNT_SQL
from billing.subscriptions.models import Subscription
from billing.usage.sums import NOT_LATE, hour_of
from core.periods import EPOCH, Period

END_OF_TIME: Final = datetime(9999, 12, 31, tzinfo=UTC)

_SLICES: Final = sa.text(f"""
SELECT hour AS at, base_model AS model,
    sum({AMOUNT_SQL})::bigint AS amount_nanos
FROM usage_hours
WHERE tenant_id = :tenant_id AND NOT hour = ANY(:split)
    AND (late_from = :not_late AND hour >= :start AND hour < :end
        OR late_from > '1970-01-01T00:00:00Z' AND late_from >= :start AND late_from < :end)
GROUP BY hour, base_model
UNION ALL
SELECT min(settled_at), base_model, sum(amount_nanos)::bigint
FROM unnest(cast(:split AS timestamptz[])) AS piece(hour)
    JOIN usage_now ON settled_at >= piece.hour AND settled_at < piece.hour + interval '1 hour'
WHERE tenant_id = :tenant_id
    AND (late_from IS NULL AND settled_at >= :start AND settled_at < :end OR late_from >= :start AND late_from < :end)
GROUP BY piece.hour, width_bucket(settled_at, cast(:bounds AS timestamptz[])), base_model
ORDER BY 1, 2
""")  # noqa: S608 - constants of the table of quantities
_EARLIEST_LATE: Final = sa.text("""
SELECT min(hour) FROM usage_hours
WHERE tenant_id = :tenant_id AND late_from > '1970-01-01T00:00:00Z' AND late_from >= :start AND late_from < :end
""")


def read_slices(
    session: Session, tenant_id: str, periods: Iterable[Period], bounds: Iterable[datetime]
) -> list[UsageSlice]:
    """What the usage that these periods bill cost, in the order of time of each. It is split at ``bounds``, the
    instants at which lots begin and end.
    """
    bounds = list(bounds)
    return [each for period in periods for each in _slices(session, tenant_id, period, bounds)]


def _slices(session: Session, tenant_id: str, period: Period, bounds: list[datetime]) -> list[UsageSlice]:
    of_period = {"tenant_id": tenant_id, "start": period.start, "end": period.end}
    late: datetime | None = session.connection().execute(_EARLIEST_LATE, of_period).scalar()
    first = min(period.start, late or period.start)
    wanted = sorted({bound.astimezone(UTC) for bound in bounds if bound > first} | {EPOCH})
    split = sorted({hour_of(each) for each in (*wanted, *period) if hour_of(each) != each})
    rows = session.connection().execute(_SLICES, {**of_period, "not_late": NOT_LATE, "split": split, "bounds": wanted})
    return [UsageSlice(at=at, model=model, amount_nanos=amount) for at, model, amount in rows if amount]


def open_period(session: Session, tenant_id: str) -> Period:
    """The time whose usage is not invoiced: from the last close on, without an end."""
    found = session.exec(select(Subscription.billed_until).where(Subscription.tenant_id == tenant_id)).first()
    return Period(found or EPOCH, END_OF_TIME)
