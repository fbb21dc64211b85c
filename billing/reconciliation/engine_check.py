"""Compares what engines counted with what the ledger has, by replica, tenant, model and the hour of the requests' ids.

Both sides know that hour exactly, so the comparison is exact while requests run: a request is on neither side before it
ends. An hour in which either side changed a moment ago waits, because the other side may follow. Requests that an
outside provider served are in no comparison: no engine counted them.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.reconciliation.differences import CountedHour, Difference, NamedRequest, explain
from core import clock
from core.contracts.replicas import OUTSIDE
from core.ids import first_id_of_ms

_HOUR: Final = timedelta(hours=1)

_COUNTED: Final = """
WITH engines AS (
    SELECT hour, replica_id, tenant_id, base_model, sum(prompt_tokens)::bigint AS prompt_tokens,
        sum(cached_tokens)::bigint AS cached_tokens, sum(output_tokens)::bigint AS output_tokens,
        sum(kv_page_ms)::bigint AS kv_page_ms, max(changed_at) AS changed_at
    FROM engine_usage_hours {hours} GROUP BY 1, 2, 3, 4
), ledger AS (
    SELECT hour, replica_id, tenant_id, base_model, input_tokens - aborted_prefill_tokens AS prompt_tokens,
        exact_cached_tokens AS cached_tokens, output_tokens, kv_measured_page_ms AS kv_page_ms, changed_at
    FROM (SELECT * FROM usage_replica_hours WHERE NOT starts_with(replica_id, '{outside}')) of_engines {hours}
), both_sides AS (
    SELECT hour, replica_id, tenant_id, base_model,
        coalesce(e.prompt_tokens, 0) AS engine_prompt_tokens, coalesce(l.prompt_tokens, 0) AS ledger_prompt_tokens,
        coalesce(e.cached_tokens, 0) AS engine_cached_tokens, coalesce(l.cached_tokens, 0) AS ledger_cached_tokens,
        coalesce(e.output_tokens, 0) AS engine_output_tokens, coalesce(l.output_tokens, 0) AS ledger_output_tokens,
        coalesce(e.kv_page_ms, 0) AS engine_kv_page_ms, coalesce(l.kv_page_ms, 0) AS ledger_kv_page_ms,
        greatest(e.changed_at, l.changed_at) > :settled_before AS waits
    FROM engines e FULL JOIN ledger l USING (hour, replica_id, tenant_id, base_model)
)
"""
# One statement for both, so that they see the same snapshot. Its first row, without an hour, has the totals.
_FOUND: Final = """
SELECT NULL AS hour, NULL AS replica_id, NULL AS tenant_id, NULL AS base_model,
    coalesce(sum(engine_prompt_tokens), 0)::bigint AS engine_prompt_tokens,
    coalesce(sum(ledger_prompt_tokens), 0)::bigint AS ledger_prompt_tokens, 0 AS engine_cached_tokens,
    0 AS ledger_cached_tokens,
    coalesce(sum(engine_output_tokens), 0)::bigint AS engine_output_tokens,
    coalesce(sum(ledger_output_tokens), 0)::bigint AS ledger_output_tokens,
    coalesce(sum(engine_kv_page_ms), 0)::bigint AS engine_kv_page_ms,
    coalesce(sum(ledger_kv_page_ms), 0)::bigint AS ledger_kv_page_ms,
    count(DISTINCT hour) AS hours, count(*) FILTER (WHERE waits) AS waiting
FROM both_sides
UNION ALL
SELECT hour, replica_id, tenant_id, base_model, engine_prompt_tokens, ledger_prompt_tokens, engine_cached_tokens,
    ledger_cached_tokens, engine_output_tokens, ledger_output_tokens, engine_kv_page_ms, ledger_kv_page_ms, 0, 0
FROM both_sides
WHERE NOT waits AND (engine_cached_tokens < ledger_cached_tokens
    OR (engine_prompt_tokens, engine_output_tokens, engine_kv_page_ms)
        <> (ledger_prompt_tokens, ledger_output_tokens, ledger_kv_page_ms))
ORDER BY hour NULLS FIRST, replica_id, tenant_id, base_model
"""
_CHANGED: Final = sa.text("""
SELECT hour FROM engine_usage_hours WHERE changed_at >= :since
UNION SELECT hour FROM usage_replica_hours WHERE changed_at >= :since
UNION SELECT billing_request_hour(request_id) FROM engine_ended_requests WHERE reported_at >= :since
ORDER BY 1
""")

# Requests of one hour that an engine named, and those that were lost with their engine, which could name none. The run
# of a batch's line counts as lost when its gateway dies, and has its last checkpoint among what was yielded.
_NAMED: Final = sa.text("""
SELECT e.request_id, e.replica_id, e.tenant_id, e.base_model, e.prompt_tokens AS engine_prompt_tokens,
    coalesce(r.prompt_tokens, 0) AS ledger_prompt_tokens, e.cached_tokens AS engine_cached_tokens,
    coalesce(r.cached_tokens, 0) AS ledger_cached_tokens, e.output_tokens AS engine_output_tokens,
    coalesce(r.output_tokens, 0) AS ledger_output_tokens, coalesce(e.kv_page_ms, 0) AS engine_kv_page_ms,
    coalesce(r.kv_page_ms, 0) AS ledger_kv_page_ms,
    coalesce(r.was_lost, true) AS was_lost
FROM (
    SELECT request_id, replica_id, tenant_id, base_model, sum(prompt_tokens)::bigint AS prompt_tokens,
        sum(cached_tokens)::bigint AS cached_tokens, sum(output_tokens)::bigint AS output_tokens,
        sum(kv_page_ms)::bigint AS kv_page_ms
    FROM engine_ended_requests WHERE request_id >= :low AND request_id < :high GROUP BY 1, 2, 3, 4
) e LEFT JOIN LATERAL (
    SELECT sum(input_tokens - aborted_prefill_tokens)::bigint AS prompt_tokens,
        sum(cached_tokens) FILTER (WHERE NOT estimated AND aborted_prefill_tokens = 0)::bigint AS cached_tokens,
        sum(output_tokens)::bigint AS output_tokens,
        bool_or(outcome IN ('gateway_gone', 'replica_gone', 'yielded')) AS was_lost,
        sum(kv_page_ms) FILTER (WHERE kv_measured)::bigint AS kv_page_ms
    FROM (
        SELECT replica_id, input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, kv_measured,
            estimated, outcome
        FROM usage_records WHERE request_id IN (e.request_id, e.request_id || '\\:rest')
      UNION ALL
        SELECT replica_id, input_tokens, cached_tokens, aborted_prefill_tokens, output_tokens, kv_page_ms, kv_measured,
            false, 'yielded'
        FROM yielded_usage
        WHERE request_id > e.request_id || '\\:' AND request_id < e.request_id || ';'
    ) r
    WHERE r.replica_id = e.replica_id
) r ON true
UNION ALL
SELECT min(request_id), replica_id, tenant_id, base_model, 0,
    sum(input_tokens - aborted_prefill_tokens)::bigint, 0,
    coalesce(sum(cached_tokens) FILTER (WHERE NOT estimated AND aborted_prefill_tokens = 0), 0)::bigint, 0,
    sum(output_tokens)::bigint, 0,
    coalesce(sum(kv_page_ms) FILTER (WHERE kv_measured), 0)::bigint, true
FROM usage_records r
WHERE request_id >= :low AND request_id < :high AND outcome IN ('gateway_gone', 'replica_gone')
    AND NOT EXISTS (
        SELECT FROM engine_ended_requests e
        WHERE e.request_id = split_part(r.request_id, '\\:', 1) AND e.replica_id = r.replica_id
    )
GROUP BY split_part(request_id, '\\:', 1), replica_id, tenant_id, base_model
""")


class EngineTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in the hours that were read. ``waiting`` pairs of replica and tenant had changed a moment ago,
    and are judged by a later run.
    """

    hours: int
    waiting: int
    engine_prompt_tokens: int
    ledger_prompt_tokens: int
    engine_output_tokens: int
    ledger_output_tokens: int
    engine_kv_page_ms: int
    ledger_kv_page_ms: int

    @property
    def engine_tokens(self) -> int:
        """Prompts and output that engines counted."""
        return self.engine_prompt_tokens + self.engine_output_tokens

    @property
    def ledger_tokens(self) -> int:
        """Prompts and output in the ledger."""
        return self.ledger_prompt_tokens + self.ledger_output_tokens


class EngineCheck(NamedTuple):
    """The totals, and every difference, explained or not."""

    totals: EngineTotals
    differences: list[Difference]


def changed_hours(session: Session, since: datetime) -> list[datetime]:
    """The hours of which either side changed since then."""
    return list(session.connection().execute(_CHANGED, {"since": since}).scalars())


def check_engines(session: Session, hours: Sequence[datetime] | None, *, settled_before: datetime) -> EngineCheck:
    """Compare these hours, or with None all. What changed after ``settled_before`` waits."""
    clause = "" if hours is None else "WHERE hour = ANY(CAST(:hours AS timestamptz[]))"
    counted = _COUNTED.format(hours=clause, outside=OUTSIDE)
    parameters: dict[str, Any] = {"settled_before": settled_before}
    if hours is not None:
        parameters["hours"] = list(hours)
    totals, *rows = session.connection().execute(sa.text(counted + _FOUND), parameters).mappings().all()
    by_hour: defaultdict[datetime, list[CountedHour]] = defaultdict(list)
    for row in rows:
        by_hour[row["hour"]].append(CountedHour(**{name: row[name] for name in CountedHour.__struct_fields__}))
    found: list[Difference] = []
    for hour, differing in by_hour.items():
        named = _named(session, hour)
        for one in differing:
            found += explain(one, named.get((one.replica_id, one.tenant_id, one.base_model), []))
    return EngineCheck(EngineTotals(**{name: totals[name] for name in EngineTotals.__struct_fields__}), found)


def _named(session: Session, hour: datetime) -> dict[tuple[str, str, str], list[NamedRequest]]:
    bounds = {
        "low": first_id_of_ms("req", clock.to_ms(hour)),
        "high": first_id_of_ms("req", clock.to_ms(hour + _HOUR)),
    }
    named: defaultdict[tuple[str, str, str], list[NamedRequest]] = defaultdict(list)
    for row in session.connection().execute(_NAMED, bounds).mappings():
        fields = dict(row)
        owner = (fields.pop("replica_id"), fields.pop("tenant_id"), fields.pop("base_model"))
        named[owner].append(NamedRequest(**fields))
    return named
