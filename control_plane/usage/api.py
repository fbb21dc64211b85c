"""A tenant's routes over its usage and its quota, and an admin's over a tenant's usage."""

from datetime import datetime
from typing import Annotated

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from redis import Redis
from sqlalchemy import Engine

from billing.usage.views import GroupBy
from control_plane.auth.authenticate import Principal
from control_plane.registry.adapters import service as adapters
from control_plane.settings import WebSettings
from control_plane.tenants import service as tenants
from control_plane.usage import quota, service
from control_plane.usage.schemas import QuotaView, UsageView
from core import clock
from core.db import unit_of_work
from core.periods import Bucket


class OwnQuota(Controller):
    """The quota of the calling tenant."""

    path = "/quota"
    tags = ("usage",)
    opt = {"scope": None, "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_quota(
        self,
        engine: NamedDependency[Engine],
        redis: NamedDependency[Redis],
        principal: NamedDependency[Principal],
    ) -> QuotaView:
        """Get the limits, the current consumption, and the reservations of running requests."""
        tenant_id = principal.own_tenant_id
        with unit_of_work(engine) as session:
            limits = tenants.get(session, tenant_id).limits
            kept = adapters.count(session, tenant_id)
        return quota.read(redis, tenant_id, limits=limits, adapters=kept)


_Start = Annotated[datetime | None, QueryParameter(description="Start, inclusive. Default: one day before `end`.")]
_End = Annotated[datetime | None, QueryParameter(description="End, exclusive. Default: now.")]
_Bucket = Annotated[Bucket, QueryParameter(description="Length of one bucket.")]
_GroupBy = Annotated[GroupBy | None, QueryParameter(description="Split each bucket by this field.")]
_TimeZone = Annotated[
    str, QueryParameter(description="IANA time zone of the days of `1d`, such as `America/New_York`.")
]


class OwnUsage(Controller):
    """The usage of the calling tenant."""

    path = "/usage"
    tags = ("usage",)
    opt = {"scope": "usage:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def get_usage(
        self,
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        web: NamedDependency[WebSettings],
        start: _Start = None,
        end: _End = None,
        bucket: _Bucket = "1h",
        group_by: _GroupBy = None,
        time_zone: _TimeZone = "UTC",
    ) -> UsageView:
        """Get tokens, requests, KV page-seconds and amounts in buckets. Minutes and hours are those of UTC, days those
        of `time_zone`, of 23 to 25 hours where its clock changes.
        """
        with unit_of_work(reports) as session:
            return service.report(
                session,
                tenant_id=principal.own_tenant_id,
                start=start,
                end=end or clock.now(),
                bucket=bucket,
                group_by=group_by,
                time_zone=time_zone,
                days_max=web.usage_days_max,
            )


class TenantUsage(Controller):
    """The usage of one tenant, for an admin."""

    path = "/tenants/{tenant_id:str}/usage"
    tags = ("admin: tenants",)

    @get(sync_to_thread=True)
    def get_tenant_usage(
        self,
        tenant_id: FromPath[str],
        reports: NamedDependency[Engine],
        web: NamedDependency[WebSettings],
        start: _Start = None,
        end: _End = None,
        bucket: _Bucket = "1h",
        group_by: _GroupBy = None,
        time_zone: _TimeZone = "UTC",
    ) -> UsageView:
        """Get a tenant's usage as the tenant sees it at `/api/v1/usage`."""
        with unit_of_work(reports) as session:
            tenants.require(session, tenant_id)
            return service.report(
                session,
                tenant_id=tenant_id,
                start=start,
                end=end or clock.now(),
                bucket=bucket,
                group_by=group_by,
                time_zone=time_zone,
                days_max=web.usage_days_max,
            )
