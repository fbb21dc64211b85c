"""Fills Postgres with usage records, their sums and their transfers, as recording would have written them.

The statements bypass the stream and the rating, but no constraint and no trigger: the database checks every row, as it
does in a COPY. ``verify`` asserts afterwards that none was off.
"""

import time
from datetime import datetime
from typing import Final, NamedTuple

import click
import sqlalchemy as sa

from billing.prices import price_book
from billing.prices.card import PriceCard
from core.contracts.grants import Prices
from core.db import unit_of_work
from core.ids import new_id

PRICES: Final = Prices(input_nanos=150, cached_input_nanos=75, output_nanos=600, kv_page_second_nanos=1_000)
_BATCH: Final = 100_000

# One row for each request: 100 prompt tokens, 32 of them cached, 20 generated; within 27 days, or in every hour of 30.
_RECORDS: Final = """
INSERT INTO usage_records
SELECT billing_request_id_floor(settled) || lpad(n::text, 16, '0'), :prefix || (n % :tenants),
    'key_' || (n / :adapters % :keys + 1), 'base', 'ad_' || (n % :adapters), 'rev_' || (n % :adapters), NULL, 'rep_1',
    'done', settled - interval '200 ms', settled, NULL, 100, 32, 0, 20, 1601, 50, 200, 'slot', 0, 0, false, :version,
    10200, 2400, 12000, 1601, 26201, :transfer
FROM (
    SELECT n, date_trunc('milliseconds', coalesce(CAST(:at AS timestamptz), now())) - CASE
        WHEN :every_hour THEN (n / (:adapters * :keys) % 720) * interval '1 hour'
        ELSE interval '1 hour' + ((n::bigint * 7919 * 1000) % (27 * 86400 * 1000::bigint)) * interval '1 ms'
    END AS settled
    FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) n
) seeds
"""
_ENTRIES: Final = """
INSERT INTO entries
SELECT :transfer, a.id, r.amount FROM (
    SELECT tenant_id, sum(amount_nanos) AS amount FROM usage_records WHERE transfer_id = :transfer GROUP BY tenant_id
) r JOIN accounts a ON a.tenant_id = r.tenant_id AND a.kind = 'usage_unbilled'
UNION ALL
SELECT :transfer, a.id, (SELECT -sum(amount_nanos) FROM usage_records WHERE transfer_id = :transfer)
FROM accounts a WHERE a.kind = 'revenue'
"""
_TRANSFER: Final = "INSERT INTO transfers (id, kind, created_at) VALUES (:transfer, 'usage', now())"
_HOURS: Final = """
INSERT INTO usage_hours
SELECT tenant_id, date_trunc('hour', settled_at, 'UTC'), to_timestamp(0), key_id, base_model, adapter_id, revision_id,
    0, price_version_id, count(*), 0, sum(input_tokens), sum(cached_tokens), 0, sum(output_tokens), sum(kv_page_ms),
    count(*), count(*), count(*), count(*),
    sum(input_nanos), sum(cached_input_nanos), sum(output_nanos), sum(kv_nanos)
FROM usage_records WHERE tenant_id LIKE :like GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""
_DAYS: Final = """
INSERT INTO usage_days
SELECT tenant_id, date_trunc('day', hour, 'UTC'), key_id, base_model, adapter_id, rank_class, price_version_id,
    sum(requests), sum(estimated_requests), sum(input_tokens), sum(cached_tokens), sum(aborted_prefill_tokens),
    sum(output_tokens), sum(kv_page_ms), sum(input_nanos), sum(cached_input_nanos), sum(output_nanos), sum(kv_nanos)
FROM usage_hours WHERE tenant_id LIKE :like GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
_MONTHS: Final = """
INSERT INTO usage_months
SELECT tenant_id, date_trunc('month', settled_at, 'UTC'), key_id, sum(input_tokens), sum(cached_tokens),
    sum(output_tokens), sum(amount_nanos)
FROM usage_records WHERE tenant_id LIKE :like GROUP BY 1, 2, 3
"""

_REPLICAS: Final = """
INSERT INTO usage_replica_hours
SELECT date_trunc('hour', settled_at, 'UTC'), replica_id, tenant_id, base_model, count(*), 0, sum(input_tokens),
    sum(cached_tokens), 0, sum(output_tokens), sum(kv_page_ms), 0, count(*), now()
FROM usage_records WHERE tenant_id LIKE :like GROUP BY 1, 2, 3, 4
"""

_TENANTS: Final = "FROM generate_series(0, CAST(:last AS int)) n"
_SUBSCRIBE: Final = (
    "INSERT INTO accounts SELECT 'acc_revenue', 'revenue', NULL ON CONFLICT DO NOTHING",
    f"INSERT INTO accounts SELECT 'acc_' || :prefix || n, 'usage_unbilled', :prefix || n {_TENANTS}",
    f"INSERT INTO plan_assignments SELECT :prefix || n, to_timestamp(0), :plan_id, now() {_TENANTS}",
    f"INSERT INTO subscriptions SELECT :prefix || n, NULL, now() {_TENANTS}",
)
_SAID_EVERY_S: Final = 10

# Constraints that hold without having been checked, triggers that do not fire, and checks that this session skips.
_UNCHECKED: Final = """
SELECT conrelid::regclass || ': ' || conname FROM pg_constraint WHERE NOT convalidated
UNION ALL SELECT tgrelid::regclass || ': ' || tgname FROM pg_trigger WHERE tgenabled <> 'O'
UNION ALL SELECT 'session_replication_role' WHERE current_setting('session_replication_role') <> 'origin'
"""


class Progress:
    """How far one phase of so many steps is, and when it will end. Printed every ten seconds, and at its end."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._begun = self._said = time.monotonic()

    def done(self, steps: int) -> None:
        """``steps`` of all are done."""
        now = time.monotonic()
        if steps < self._total and now < self._said + _SAID_EVERY_S:
            return
        self._said, took = now, now - self._begun
        left = f", about {took * (self._total - steps) / max(1, steps):.0f} s left" if steps < self._total else ""
        click.echo(f"  {self._what}: {steps:,} of {self._total:,} in {took:.0f} s{left}", err=True)


class Owners(NamedTuple):
    """The keys and adapters of each tenant. With ``every_hour`` each pair has a record in each hour, in turn."""

    adapters: int = 10
    keys: int = 1
    every_hour: bool = False


FEW: Final = Owners()
WIDE: Final = Owners(adapters=25, keys=10, every_hour=True)
WIDE_RECORDS: Final = 720 * WIDE.adapters * WIDE.keys
"""A tenant with as many sums by hour as records: 180,000 in 30 days."""


def seed(
    engine: sa.Engine,
    *,
    prefix: str,
    tenants: int,
    records: int,
    first: int,
    owners: Owners = FEW,
    at: datetime | None = None,
) -> None:
    """Write ``records`` over ``tenants`` whose ids begin with ``prefix``. ``first`` keeps the ids of calls apart; the
    newest record settles ``at`` an instant or an hour before it, by default now.
    """
    progress = Progress(f"records of {prefix}", records)
    version = _subscribe(engine, prefix, tenants)
    for start in range(first, first + records, _BATCH):
        last = min(start + _BATCH, first + records) - 1
        values = {
            "prefix": prefix, "tenants": tenants, "version": version, "transfer": new_id("tr"),
            "first": start, "last": last, "at": at, **owners._asdict(),
        }  # fmt: skip
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            for statement in (_RECORDS, _ENTRIES, _TRANSFER):
                names = {name: values[name] for name in values if f":{name}" in statement}
                connection.execute(sa.text(statement), names)
        progress.done(last + 1 - first)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        for statement in (_HOURS, _DAYS, _MONTHS, _REPLICAS):
            connection.execute(sa.text(statement), {"like": f"{prefix}%"})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        connection.exec_driver_sql("ANALYZE")


def verify(engine: sa.Engine, records: int) -> None:
    """Assert that ``records`` are there, and that every constraint and trigger was in force for them."""
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        unchecked = connection.exec_driver_sql(_UNCHECKED).scalars().all()
        found = connection.exec_driver_sql("SELECT count(*) FROM usage_records").scalar_one()
    assert not unchecked, unchecked
    assert found == records, f"{found} records, not {records}"


def _subscribe(engine: sa.Engine, prefix: str, tenants: int) -> str:
    """One plan for all of them. Returns its price version."""
    plan_id = new_id("pl")
    with unit_of_work(engine) as session:
        version = price_book.add_version(session, plan_id=plan_id, card=PriceCard.of_all_models(PRICES))
        values = {"prefix": prefix, "last": tenants - 1, "plan_id": plan_id}
        for statement in _SUBSCRIBE:
            names = {name: values[name] for name in values if f":{name}" in statement}
            session.connection().execute(sa.text(statement), names)
    return version.id
