"""Reads the usage records of one invoice line, hour by hour, in the order in which they settled.

The hourly sums say in which hours the line has any units, and how many come before; so only those hours' records are
read. The two hours in which a period begins and ends are summed from their records.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlmodel import Session

from billing.documents.line_cover import PoolOwner, kind_of, models_with_own_tiers
from billing.invoices.views import InvoiceLineView
from billing.prices.card import PriceCard
from billing.prices.quantities import AMOUNTS, QUANTITIES
from billing.usage.sums import NOT_LATE, hour_of
from core.periods import Period

HOUR: Final = timedelta(hours=1)

# Usage of a line's price version and service tier, and of its model, adapter and rank class unless it has tiers.
_OF_LINE: Final = """
tenant_id = :tenant_id AND price_version_id = :version AND service_tier = :service_tier
    AND (CAST(:base_model AS text) IS NULL OR base_model = :base_model)
    AND NOT base_model = ANY(CAST(:other_models AS text[]))
    AND (:any_adapter OR coalesce(adapter_id, '') = :adapter_id AND coalesce(rank_class, 0) = :rank_class)
    AND {count} > 0
"""
_LATE: Final = """
late_from >= :start AND late_from < :end
    AND (CAST(:late_for AS timestamptz) IS NULL OR date_trunc('month', {instant}, 'UTC') = :late_for)
"""
_LATE_FOR: Final = "CASE WHEN :late THEN date_trunc('month', {instant}, 'UTC') END"
_OWNER: Final = f"""
CASE WHEN :by_owner THEN base_model END AS model, CASE WHEN :by_owner THEN coalesce(adapter_id, '') END AS adapter,
    CASE WHEN :by_owner THEN coalesce(rank_class, 0) END AS rank, CASE WHEN :by_owner THEN {_LATE_FOR} END AS late_for
"""

# ``count`` and ``amount`` are the columns of the line's quantity (``QUANTITIES``).
_HOURS: Final = f"""
SELECT {_OWNER.format(instant="hour")}, hour, sum({{count}})::bigint AS units, sum({{amount}})::bigint AS nanos
FROM usage_hours
WHERE {_OF_LINE}
    AND CASE WHEN :late THEN {_LATE.format(instant="hour")}
        ELSE late_from = :not_late AND hour >= :whole_from AND hour < :whole_until END
GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608 - constants of this module
_RECORDS: Final = f"""
SELECT request_id, settled_at, late_from, key_id, base_model, adapter_id, rank_class, service_tier, estimated,
    input_tokens, cached_tokens, output_tokens, kv_page_ms, {", ".join(AMOUNTS)},
    {{count}} AS units, {{amount}} AS nanos, {_LATE_FOR.format(instant="settled_at")} AS month
FROM usage_now
WHERE {_OF_LINE}
    AND settled_at >= :hour AND settled_at < :hour_end
    AND CASE WHEN :late THEN {_LATE.format(instant="settled_at")} ELSE late_from IS NULL END
"""  # noqa: S608 - constants of this module
_PART_OF_HOUR: Final = f"""
SELECT {_OWNER.format(instant="settled_at")}, CAST(:full_hour AS timestamptz) AS hour,
    sum(units)::bigint AS units, sum(nanos)::bigint AS nanos
FROM ({_RECORDS}) records
GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608 - constants of this module
_WHOLE_RECORDS: Final = f"""
SELECT *, units AS counted, CAST(0 AS bigint) AS begins FROM ({_RECORDS}) records
WHERE (settled_at, request_id) > (:after_settled, :after_id)
ORDER BY settled_at, request_id LIMIT :limit
"""  # noqa: S608 - constants of this module
# Each owner's first units of the hour may be included, and only the others are counted.
_COUNTED_RECORDS: Final = f"""
SELECT * FROM (
    SELECT *, (sum(counted) OVER (ORDER BY settled_at, request_id) - counted)::bigint AS begins FROM (
        SELECT r.*, (r.units - least(r.units, greatest(0, coalesce(i.left_units, 0) - (
            sum(r.units) OVER (
                PARTITION BY r.base_model, r.adapter_id, r.rank_class, r.month ORDER BY r.settled_at, r.request_id
            ) - r.units
        ))))::bigint AS counted
        FROM ({_RECORDS}) r LEFT JOIN unnest(
            CAST(:models AS text[]), CAST(:adapters AS text[]), CAST(:ranks AS int[]),
            CAST(:months AS timestamptz[]), CAST(:left_units AS bigint[])
        ) AS i (model, adapter, rank, month, left_units)
            ON i.model = r.base_model AND i.adapter = coalesce(r.adapter_id, '') AND i.rank = coalesce(r.rank_class, 0)
            AND i.month IS NOT DISTINCT FROM r.month
    ) reduced
) numbered
WHERE (settled_at, request_id) > (:after_settled, :after_id)
    AND counted > 0 AND begins + counted > :first AND begins < :last
ORDER BY settled_at, request_id LIMIT :limit
"""  # noqa: S608 - constants of this module


class RequestPosition(NamedTuple):
    """The last record of a page."""

    settled_at: datetime
    request_id: str


class HourOfLine(NamedTuple):
    """An hour with units of the line: how many count, what their records cost, and what of each owner is included."""

    start: datetime
    units: int
    nanos: int
    included: tuple[tuple[PoolOwner, int], ...] = ()


class LineRecords:
    """The records of a line in a period. ``included`` are the first units of owners that do not count."""

    def __init__(
        self,
        session: Session,
        *,
        tenant_id: str,
        period: Period,
        line: InvoiceLineView,
        card: PriceCard,
        included: Mapping[PoolOwner, int],
    ) -> None:
        self._session = session
        self._quantity = QUANTITIES[kind_of(line)]
        self._period = period
        self._late = line.late_for is not None
        self._included = included
        self._parameters: dict[str, Any] = {  # values of several types
            "tenant_id": tenant_id,
            "version": line.price_version_id,
            "service_tier": line.service_tier or "default",
            "base_model": line.base_model,
            "other_models": models_with_own_tiers(line, card),
            "any_adapter": line.tier is not None,
            "adapter_id": line.adapter_id or "",
            "rank_class": line.rank_class or 0,
            "late": self._late,
            "late_for": None if line.tier is not None else line.late_for,
            "start": period.start,
            "end": period.end,
        }

    def read_hours(self) -> list[HourOfLine]:
        """The hours with units of the line, in order."""
        units: defaultdict[datetime, int] = defaultdict(int)
        nanos: defaultdict[datetime, int] = defaultdict(int)
        still: defaultdict[datetime, list[tuple[PoolOwner, int]]] = defaultdict(list)
        left = dict(self._included)
        for row in sorted(self._sums(), key=lambda row: row.hour):
            counted = row.units
            if left:
                owner = PoolOwner(row.model, row.adapter, row.rank, row.late_for)
                if free := left.get(owner, 0):
                    still[row.hour].append((owner, free))
                    left[owner] = max(0, free - row.units)
                    counted = max(0, row.units - free)
            units[row.hour] += counted
            nanos[row.hour] += row.nanos
        return [HourOfLine(hour, units[hour], nanos[hour], tuple(still[hour])) for hour in sorted(units)]

    def read(
        self, hour: HourOfLine, after: RequestPosition | None, *, limit: int, within: tuple[int, int] | None
    ) -> Sequence[sa.RowMapping]:
        """Records of an hour after a position, whose counted units lie ``within`` bounds counted from the hour's first
        unit; None reads whole records.
        """
        parameters = self._of_hour(hour.start) | {
            "after_settled": after.settled_at if after else NOT_LATE,
            "after_id": after.request_id if after else "",
            "limit": limit,
        }
        if within is None:
            return self._execute(_WHOLE_RECORDS, parameters).mappings().all()
        owners = [owner for owner, _ in hour.included]
        parameters |= {
            "first": within[0],
            "last": within[1],
            "models": [owner.base_model for owner in owners],
            "adapters": [owner.adapter_id for owner in owners],
            "ranks": [owner.rank_class for owner in owners],
            "months": [owner.late_for for owner in owners],
            "left_units": [left for _, left in hour.included],
        }
        return self._execute(_COUNTED_RECORDS, parameters).mappings().all()

    def _sums(self) -> list[sa.Row[Any]]:  # owner, hour, units and nanodollars
        by_owner = {"by_owner": bool(self._included)}
        whole_from = hour_of(self._period.start + HOUR - timedelta(microseconds=1))
        whole_until = max(whole_from, hour_of(self._period.end))
        bounds = {"not_late": NOT_LATE, "whole_from": whole_from, "whole_until": whole_until}
        rows = list(self._execute(_HOURS, self._parameters | by_owner | bounds))
        if self._late:
            return rows
        for hour in sorted({hour_of(self._period.start), whole_until}):
            if not whole_from <= hour < whole_until and hour < self._period.end:
                parameters = self._of_hour(hour) | by_owner | {"full_hour": hour}
                rows += self._execute(_PART_OF_HOUR, parameters)
        return rows

    def _execute(self, statement: str, parameters: dict[str, Any]) -> sa.CursorResult[Any]:  # columns of several types
        columns = {"count": self._quantity.count, "amount": self._quantity.amount}
        return self._session.connection().execute(sa.text(statement.format(**columns)), parameters)

    def _of_hour(self, hour: datetime) -> dict[str, Any]:  # values of several types
        start, end = hour, hour + HOUR
        if not self._late:
            start, end = max(start, self._period.start), min(end, self._period.end)
        return self._parameters | {"hour": start, "hour_end": end}
