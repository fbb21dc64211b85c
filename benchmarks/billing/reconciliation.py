"""Measures reconciliation over seeded records, whose engines counted exactly what the ledger has."""

import time
from datetime import timedelta
from typing import Final, NamedTuple

import sqlalchemy as sa

from billing.reconciliation import runs

_LIMITS: Final = runs.RunLimits(settle=timedelta(0), differences_max=1_000)
_HOURS_CHANGED: Final = 3
_ENGINES: Final = (
    """
    INSERT INTO engine_usage_hours
    SELECT hour, replica_id, 'boot_1', tenant_id, base_model, requests, input_tokens - aborted_prefill_tokens,
        exact_cached_tokens, output_tokens, kv_measured_page_ms, kv_unmeasured_requests, now() - interval '1 day'
    FROM usage_replica_hours
    """,
    "UPDATE usage_replica_hours SET changed_at = now() - interval '1 day'",
)
_CHANGE: Final = """
UPDATE engine_usage_hours SET changed_at = now()
WHERE hour IN (SELECT DISTINCT hour FROM engine_usage_hours ORDER BY hour DESC LIMIT :hours)
"""


class ReconciliationTimes(NamedTuple):
    """Seconds of a run that reads everything, and of one that reads the hours that changed."""

    full_s: float
    hourly_s: float


def timed_runs(engine: sa.Engine) -> ReconciliationTimes:
    """A full run and one of three changed hours. They must find no difference."""
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        for statement in _ENGINES:
            connection.exec_driver_sql(statement)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        connection.exec_driver_sql("ANALYZE usage_replica_hours, engine_usage_hours")
    full_s = _timed(engine, full=True)
    with engine.begin() as connection:
        connection.execute(sa.text(_CHANGE), {"hours": _HOURS_CHANGED})
    return ReconciliationTimes(full_s, _timed(engine, full=False))


def _timed(engine: sa.Engine, *, full: bool) -> float:
    begun = time.monotonic()
    found = runs.run(engine, _LIMITS, full=full)
    assert found.differing == 0, runs.described(found)
    assert found.engine_tokens == found.ledger_tokens > 0
    return time.monotonic() - begun
