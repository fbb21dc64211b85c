"""Publishes new spend ceilings at the start of a month, and when usage of an earlier month is recorded late.

``service`` computes a ceiling; gateways receive it like any change of a tenant. Fails closed: until the new month's
ceiling is published, the old one applies.
"""

import time
from datetime import UTC
from typing import cast

import msgspec
from redis import Redis
from sqlalchemy import Engine
from sqlmodel import Session

from control_plane.publishing.outbox import publish_bulk
from control_plane.settings import WorkerSettings
from control_plane.tenants import service
from core import redis_keys
from core.contracts.grants import TenantGrant
from core.db import database_now, unit_of_work

_DECODER = msgspec.json.Decoder(TenantGrant)


class SpendCeilings:
    """The worker's loop over tenants with a spending limit."""

    def __init__(self, engine: Engine, redis: Redis, settings: WorkerSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._recount_s = settings.spend_ceiling_recount_s
        self._month = ""
        self._counted_at = 0.0

    def run_once(self) -> bool:
        """Publish the tenants whose ceiling differs from the published one, in a new month or after ``recount_s``.
        Always returns False.
        """
        with unit_of_work(self._engine) as session:
            month = _month(session)
        if month == self._month and time.monotonic() - self._counted_at < self._recount_s:
            return False
        with unit_of_work(self._engine) as session:
            grants = service.spend_limited_grants(session)
        if grants:
            published = cast("list[bytes | None]", self._redis.hmget(redis_keys.snapshot("tenants"), list(grants)))
            stale = [
                tenant_id
                for (tenant_id, grant), value in zip(grants.items(), published, strict=True)
                if value is not None and _spend(_DECODER.decode(value)) != _spend(grant)
            ]
            with unit_of_work(self._engine) as session:
                publish_bulk(session, "tenants", stale)
        self._month, self._counted_at = month, time.monotonic()
        return False


def _spend(grant: TenantGrant) -> tuple[int | None, int]:
    return grant.spend_ceiling_nanos, grant.charged_nanos


def _month(session: Session) -> str:
    """The UTC month by the database's clock, which also dates usage."""
    return database_now(session).astimezone(UTC).strftime("%Y-%m")
