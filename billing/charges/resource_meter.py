"""Meters resources by the hour for tenants that pay for them: adapter storage and cold loads.

An hour is metered once, some minutes after its end. What is metered after its period was closed is not billed: the
meter fails open, in the tenant's favor. Pinned slots have a price and lines, but no meter yet.
"""

from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.usage.sums import hour_of
from core.db import database_now, unit_of_work

_HOUR: Final = timedelta(hours=1)
_SETTLE: Final = timedelta(minutes=10)
"""How long an hour waits for usage events that are on their way."""

_HOURS_MAX: Final = 24 * 31

_PAYING: Final = sa.text("""
SELECT tenant_id FROM plan_assignments JOIN price_versions USING (plan_id)
    WHERE (card ->> CAST(:price AS text))::bigint > 0
UNION SELECT tenant_id FROM price_overrides JOIN price_versions v ON v.id = price_version_id
    WHERE (v.card ->> CAST(:price AS text))::bigint > 0
ORDER BY 1
""")
_NEWEST: Final = sa.text("SELECT max(hour) FROM resource_hours WHERE kind = :kind")
_STORAGE: Final = sa.text("""
INSERT INTO resource_hours (tenant_id, hour, kind, adapter_id, quantity)
SELECT tenant_id, hour, 'adapter_storage', adapter_id, byte_hours / 1000000000::numeric FROM (
    SELECT s.tenant_id, h.hour, s.adapter_id, sum(floor(s.size_bytes * extract(epoch FROM
        least(h.hour + interval '1 hour', s.until) - greatest(h.hour, s.since)) / 3600)) AS byte_hours
    FROM generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz), interval '1 hour') AS h (hour)
    JOIN stored_adapters s ON s.since < h.hour + interval '1 hour' AND (s.until IS NULL OR s.until > h.hour)
    WHERE s.tenant_id = ANY (:tenant_ids)
    GROUP BY 1, 2, 3
) stored WHERE byte_hours > 0
ON CONFLICT DO NOTHING
""")
# A replica that loads a revision again within the hour has evicted it, which is our doing.
_COLD_LOADS: Final = sa.text("""
INSERT INTO resource_hours (tenant_id, hour, kind, adapter_id, quantity)
SELECT tenant_id, date_trunc('hour', settled_at, 'UTC'), 'cold_loads', adapter_id,
    count(DISTINCT (replica_id, revision_id))
FROM usage_records
WHERE tenant_id = ANY (:tenant_ids) AND settled_at >= :first AND settled_at < :last + interval '1 hour'
    AND adapter_tier = 'store' AND adapter_load_ms > 0 AND adapter_id IS NOT NULL
GROUP BY 1, 2, 4
ON CONFLICT DO NOTHING
""")
_METERS: Final = (
    ("adapter_storage", "adapter_storage_gb_hour_nanos", _STORAGE),
    ("cold_loads", "cold_load_nanos", _COLD_LOADS),
)


class ResourceMeter:
    """The worker's look at hours that have ended. Several workers may run it: an hour is written once."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def run_once(self) -> None:
        """Meter the hours that are due, each resource in a transaction of its own."""
        for kind, price, statement in _METERS:
            with unit_of_work(self._engine) as session:
                _meter(session, kind, price, statement)


def _meter(session: Session, kind: str, price: str, statement: sa.TextClause) -> None:
    connection = session.connection()
    tenant_ids = list(connection.execute(_PAYING, {"price": price}).scalars())
    if not tenant_ids:
        return
    last = hour_of(database_now(session) - _SETTLE) - _HOUR
    newest: datetime | None = connection.execute(_NEWEST, {"kind": kind}).scalar_one()
    first = last if newest is None else max(newest + _HOUR, last - _HOURS_MAX * _HOUR)
    if first <= last:
        connection.execute(statement, {"tenant_ids": tenant_ids, "first": first, "last": last})
