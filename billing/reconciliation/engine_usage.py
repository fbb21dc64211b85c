"""Moves what agents report about ended requests from Redis to Postgres.

Reading, storing and removing are repeated until Redis holds none. A crash between the commit and the removal stores
nothing twice: counts are totals, of which the larger stay, and a request's final counts are written once.
"""

from collections.abc import Sequence
from typing import Final, cast

import msgspec
import redis as redis_client
import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session

from billing import metrics
from billing.reconciliation.models import EngineEndedRequest, EngineUsageCount
from core import clock, redis_keys
from core.contracts.engine_usage import EngineUsageReport
from core.db import database_now, unit_of_work

_BATCH_MAX: Final = 100
_COUNTS: Final = (
    "requests", "prompt_tokens", "cached_tokens", "output_tokens", "kv_page_ms", "kv_unmeasured_requests",
)  # fmt: skip
_KEY: Final = ("hour", "replica_id", "boot_id", "tenant_id")

_log = structlog.get_logger()
_Entries = list[tuple[bytes, dict[bytes, bytes]]]


def store_reports(engine: sa.Engine, redis: redis_client.Redis) -> None:
    """Store everything that is in the stream now. Raises RedisError and DBAPIError when a dependency is down."""
    while entries := cast("_Entries", redis.xrange(redis_keys.ENGINE_USAGE, count=_BATCH_MAX)):
        with unit_of_work(engine) as session:
            store(session, [report for _, fields in entries if (report := _decoded(fields)) is not None])
        redis.xdel(redis_keys.ENGINE_USAGE, *(entry_id for entry_id, _ in entries))


def store(session: Session, reports: Sequence[EngineUsageReport]) -> None:
    """Write the reports. A report that says nothing new leaves ``changed_at`` as it is."""
    now = database_now(session)
    hours: dict[tuple[object, ...], dict[str, object]] = {}
    for report in reports:
        for hour in report.hours:
            row = msgspec.structs.asdict(hour) | {
                "hour": clock.from_ms(hour.hour_ms), "replica_id": report.replica_id, "boot_id": report.boot_id,
                "base_model": report.base_model, "changed_at": now,
            }  # fmt: skip
            del row["hour_ms"]
            key = tuple(row[name] for name in _KEY)
            known = hours.get(key)
            if known is None or cast("int", known["requests"]) <= hour.requests:
                hours[key] = row
    if hours:
        _store_hours(session, [hours[key] for key in sorted(hours, key=str)])
    ended = [
        {
            "request_id": one.request_id, "replica_id": report.replica_id, "boot_id": report.boot_id,
            "tenant_id": one.tenant_id, "base_model": report.base_model, "prompt_tokens": one.prompt_tokens,
            "cached_tokens": one.cached_tokens, "output_tokens": one.output_tokens, "kv_page_ms": one.kv_page_ms,
            "ended_at": clock.from_ms(one.ended_at_ms), "reported_at": now,
        }
        for report in reports
        for one in report.requests
    ]  # fmt: skip
    if ended:
        ended.sort(key=lambda row: cast("str", row["request_id"]))
        session.connection().execute(insert(EngineEndedRequest).on_conflict_do_nothing(), ended)


def _store_hours(session: Session, rows: list[dict[str, object]]) -> None:
    table = sa.inspect(EngineUsageCount).columns
    statement = insert(EngineUsageCount)
    larger = {name: sa.func.greatest(table[name], statement.excluded[name]) for name in _COUNTS}
    statement = statement.on_conflict_do_update(
        index_elements=_KEY,
        set_={**larger, "changed_at": statement.excluded["changed_at"]},
        where=sa.or_(*(statement.excluded[name] > table[name] for name in _COUNTS)),
    )
    session.connection().execute(statement, rows)


def _decoded(fields: dict[bytes, bytes]) -> EngineUsageReport | None:
    try:
        return msgspec.json.decode(fields[b"report"], type=EngineUsageReport)
    except (KeyError, msgspec.DecodeError) as error:
        metrics.ENGINE_REPORTS_REFUSED.inc()
        _log.error("a report of an engine's usage was refused", reason=str(error)[:300])
        return None
