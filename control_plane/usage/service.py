"""Reports a tenant's usage in buckets, as billing recorded it, and adds the names of adapters."""

from datetime import datetime, timedelta
from zoneinfo import available_timezones

from sqlmodel import Session

from billing.usage import buckets
from billing.usage.buckets import UsageGroup
from billing.usage.views import GroupBy
from control_plane.registry.adapters import service as adapters
from control_plane.usage.schemas import UsageRow, UsageView
from core.errors import InvalidRequest
from core.periods import Bucket, aware
from core.rating import MS_PER_PAGE_SECOND
from core.struct_types import view_of


def report(
    session: Session,
    *,
    tenant_id: str,
    start: datetime | None,
    end: datetime,
    bucket: Bucket,
    group_by: GroupBy | None,
    time_zone: str = "UTC",
    days_max: int,
) -> UsageView:
    """The tenant's usage settled in ``[start, end)``, by default of one day. Raises InvalidRequest for naive instants,
    an invalid range and an unknown time zone.
    """
    if time_zone not in available_timezones():
        raise InvalidRequest(
            f"time_zone is {time_zone[:64]!r}; use a name of the IANA database, such as Europe/Berlin or UTC.",
            code="unknown_zone",
            param="time_zone",
        )
    aware(end, "end")
    if start is None:
        start = end - timedelta(days=1)
    aware(start, "start")
    if end - start > timedelta(days=days_max):
        raise InvalidRequest(
            f"start: one query may cover at most {days_max} days. Request a shorter range.", param="start"
        )
    found = buckets.usage(
        session, tenant_id=tenant_id, start=start, end=end, bucket=bucket, group_by=group_by, zone=time_zone
    )
    names = {}
    if group_by in ("adapter", "revision"):
        ids = {row.adapter_id for row in found if row.adapter_id}
        names = adapters.names_of(session, tenant_id=tenant_id, adapter_ids=ids)
    return UsageView(start=start, end=end, data=[_row(row, group_by, names) for row in found])


def _row(bucket: UsageGroup, group_by: GroupBy | None, names: dict[str, str]) -> UsageRow:
    by_adapter = group_by in ("adapter", "revision")
    return view_of(
        bucket,
        UsageRow,
        kv_page_seconds=bucket.kv_page_ms / MS_PER_PAGE_SECOND,
        adapter=names.get(bucket.adapter_id or "") if by_adapter else None,
        revision=(bucket.revision_id or "") if group_by == "revision" else None,
    )
