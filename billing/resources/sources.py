"""Where meters read from: the control plane's views of stored revisions and pins, and recorded requests."""

from datetime import datetime, timedelta
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.resources.use import HOUR, PinnedSlot, ResourceOwner, ResourceUse, StoredRevision, pins_in, storage_in
from core import clock
from core.ids import first_id_of_ms

_STORED: Final = sa.text("""
SELECT tenant_id, adapter_id, base_model, rank_class, revision_id, digest, stored_bytes, begins,
    least(ends, ended_at) AS ends
FROM stored_revisions LEFT JOIN subscriptions USING (tenant_id)
WHERE begins < :end AND (ends IS NULL OR ends > :start)
""")

_PINNED: Final = sa.text("""
SELECT tenant_id, adapter_id, base_model, rank_class, begins,
    CASE WHEN :subscribed THEN least(ends, ended_at) ELSE ends END AS ends
FROM pinned_slots LEFT JOIN subscriptions USING (tenant_id)
WHERE begins < :end AND (ends IS NULL OR ends > :start)
""")

# The ids of transfers are in the order of time, which makes this a range of the primary key.
_SERVED: Final = sa.text("""
WITH served AS (
    SELECT DISTINCT ON (r.replica_id, r.revision_id) r.replica_id, r.revision_id, r.request_id, r.adapter_tier
    FROM transfers t JOIN usage_records r ON r.transfer_id = t.id
    WHERE t.id >= :low AND t.id < :high AND t.kind = 'usage' AND t.created_at >= :start AND t.created_at < :end
        AND r.revision_id IS NOT NULL
    ORDER BY r.replica_id, r.revision_id, r.started_at, r.request_id
), first AS (
    INSERT INTO replica_revisions (replica_id, revision_id, request_id, adapter_tier, hour)
    SELECT replica_id, revision_id, request_id, adapter_tier, :hour FROM served
    ORDER BY replica_id, revision_id
    ON CONFLICT DO NOTHING RETURNING request_id, adapter_tier
)
SELECT r.tenant_id, r.adapter_id, r.base_model, coalesce(r.rank_class, 0) AS rank_class, count(*) AS units
FROM first f JOIN usage_records r ON r.request_id = f.request_id
WHERE f.adapter_tier = 'store' AND r.adapter_id IS NOT NULL
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
""")

_SLICE: Final = timedelta(minutes=5)
_CLOCKS_APART: Final = timedelta(hours=1)


def storage(session: Session, hour: datetime) -> list[ResourceUse]:
    """The byte-seconds of ready revisions in an hour, from acceptance until the tenant deleted the adapter or left."""
    rows = session.connection().execute(_STORED, {"start": hour, "end": hour + HOUR}).mappings()
    return storage_in(
        hour,
        [
            StoredRevision(
                owner=msgspec.convert(dict(row), ResourceOwner),
                **{name: row[name] for name in StoredRevision.__struct_fields__ if name != "owner"},
            )
            for row in rows
        ],
    )


def pins(session: Session, start: datetime, end: datetime, *, subscribed: bool = False) -> list[ResourceUse]:
    """The slot-milliseconds of pins in a span of time; only until their tenants left, if ``subscribed``."""
    rows = session.connection().execute(_PINNED, {"start": start, "end": end, "subscribed": subscribed}).mappings()
    return pins_in(
        start,
        end,
        [
            PinnedSlot(owner=msgspec.convert(dict(row), ResourceOwner), begins=row["begins"], ends=row["ends"])
            for row in rows
        ],
    )


def cold_loads(session: Session, hour: datetime) -> list[ResourceUse]:
    """The cold loads among the requests that were recorded in an hour, and note every replica and revision that served.

    The first recorded request for a revision on a replica is a cold load if it had to begin the download. Any later
    load from the store there repeats one that the platform's own eviction undid, and is none.
    """
    found: dict[ResourceOwner, int] = {}
    start = hour
    while start < hour + HOUR:  # a slice at a time, below the limit of a statement
        end = start + _SLICE
        parameters = {
            "low": first_id_of_ms("tr", clock.to_ms(start - _CLOCKS_APART)),
            "high": first_id_of_ms("tr", clock.to_ms(end + _CLOCKS_APART)),
            "start": start,
            "end": end,
            "hour": hour,
        }
        for row in session.connection().execute(_SERVED, parameters).mappings():
            owner = msgspec.convert({key: row[key] for key in ResourceOwner.__struct_fields__}, ResourceOwner)
            found[owner] = found.get(owner, 0) + row["units"]
        start = end
    return [ResourceUse(owner=owner, units=found[owner]) for owner in sorted(found)]
