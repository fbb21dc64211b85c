"""A tenant's routes over its usage and its quota, and an admin's over a tenant's usage."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, cast

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
from control_plane.usage import service
from control_plane.usage.schemas import QuotaHeld, QuotaUsed, QuotaView, UsageView
from core import clock, redis_keys
from core.contracts.grants import Limits
from core.db import unit_of_work
from core.periods import Bucket
from core.quota_state import FIELDS, HELD_FIELDS, LevelState, read_level, whole_seconds, without_expired

EXPIRED_MAX: Final = 1000  # expired leases that no gateway has swept yet; gateways sweep within seconds


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
        return read_quota(redis, tenant_id, limits=limits, adapters=kept)


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


def read_quota(redis: Redis, tenant_id: str, *, limits: Limits, adapters: int) -> QuotaView:
    """The quota now, by Redis's clock, which the gateways' scripts use too. Fails closed: without Redis it raises."""
    seconds, micros = redis.time()
    leases = redis_keys.tenant_leases(tenant_id)
    now_ms = seconds * 1000 + micros // 1000
    expired = cast("list[bytes]", redis.zrange(leases, "-inf", now_ms, byscore=True, offset=0, num=EXPIRED_MAX))
    with redis.pipeline(transaction=True) as pipe:
        pipe.hmget(redis_keys.tenant_quota(tenant_id), list(FIELDS))
        for request_id in expired:
            pipe.hmget(redis_keys.reservation(tenant_id, request_id.decode()), list(HELD_FIELDS))
        stored, *held = cast("list[Sequence[bytes | None]]", pipe.execute())
    level = read_level(stored, now_us=seconds * 1_000_000 + micros)
    return quota_view(without_expired(level, held), limits=limits, adapters=adapters)


def quota_view(level: LevelState, *, limits: Limits, adapters: int) -> QuotaView:
    """The response for a tenant's quota state. Pure."""
    by_rate = {
        "requests": limits.requests_per_minute,
        "tokens": limits.tokens_per_minute,
        "input": limits.input_tokens_per_minute,
        "output": limits.output_tokens_per_minute,
        "gpu": limits.gpu_seconds_per_minute,
    }
    used = {rate: 0 if limit is None else level.used_of(rate, limit) for rate, limit in by_rate.items()}
    return QuotaView(
        limits=limits,
        used=QuotaUsed(
            requests_per_minute=used["requests"],
            tokens_per_minute=used["tokens"],
            input_tokens_per_minute=used["input"],
            output_tokens_per_minute=used["output"],
            tokens_per_month=level.tokens_this_month,
            spend_nanos_per_month=level.spent_this_month_nanos,
            gpu_seconds_per_minute=used["gpu"],
            gpu_seconds_per_month=whole_seconds(level.gpu_this_month_us),
            adapters=adapters,
        ),
        held=QuotaHeld(
            concurrent_requests=level.concurrent_requests,
            kv_pages=level.kv_pages,
            tokens=level.tokens_held,
            spend_nanos=level.spend_held_nanos,
            gpu_seconds=whole_seconds(level.gpu_held_us),
        ),
    )
