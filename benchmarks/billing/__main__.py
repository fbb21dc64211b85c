"""Measures billing: recording, closing and reporting, on a real Postgres and Valkey of their own.

Run: ``python -m benchmarks.billing [--records 1000000]``. Prints each goal with its figure and writes JSON; exits with
status 1 when a goal is missed. Records are seeded by SQL through every constraint (``benchmarks.billing.seed``).
"""

import json
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import click
import msgspec
import sqlalchemy as sa
from alembic import command

from benchmarks.billing.seed import seed
from benchmarks.load import quantile
from billing.invoices import closing
from billing.metering import Meter
from billing.reconciliation import audit
from billing.settings import BillingSettings
from billing.stream import UsageStream
from billing.usage import queries
from billing.worker import connect_redis
from core import clock, db, redis_keys
from core.contracts.usage import UsageEvent
from core.db import database_now, unit_of_work
from core.ids import new_id
from core.settings import RedisSettings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import alembic_config, create_database, running, running_valkey
from tests.fixtures.least_privilege import POSTGRES_ROLES

TENANTS: Final = 1_000
GOALS: Final = {
    "events recorded a second, onto the seeded records": (">=", 1_000.0),
    "seconds to close the seeded records of 1,000 tenants": ("<=", 60.0),
    "seconds to close as many records of one tenant": ("<=", 60.0),
    "p95 of a report on a month of the one tenant, ms": ("<=", 300.0),
    "seconds of a whole reconciliation": ("<=", 120.0),
}


@contextmanager
def database(home: Path) -> Iterator[sa.Engine]:
    """An empty database on a Postgres that syncs its commits to the disk."""
    server = embedded_servers.postgres(
        home / "pg", home, port=free_port(), password=secrets.token_hex(8), roles=POSTGRES_ROLES
    )
    with running(server.program):
        settings = create_database(server.url, "billing")
        command.upgrade(alembic_config(settings), "head")
        engine = db.connect(settings)
        yield engine
        engine.dispose()


def record_events(engine: sa.Engine, redis_url: str, events: int) -> float:
    """Events a second that one worker records, in batches as they come from the stream."""
    settings = BillingSettings()
    with connect_redis(RedisSettings(redis_url=redis_url), settings) as redis:
        stream = UsageStream(redis, "benchmark")
        stream.ensure_group()
        meter = Meter(engine, stream, settings)
        pipeline = redis.pipeline(transaction=False)
        for number in range(events):
            pipeline.xadd(redis_keys.USAGE_STREAM, {"event": msgspec.json.encode(_event(number))})
            if number % 5_000 == 4_999:
                pipeline.execute()
        pipeline.execute()
        begun = time.monotonic()
        while entries := stream.read(count=settings.billing_batch_events_max, block_ms=None):
            meter.process(entries)
        return events / (time.monotonic() - begun)


def _event(number: int) -> UsageEvent:
    now = clock.now_ms()
    return UsageEvent(
        request_id=new_id("req"), tenant_id=f"tn_many_{number % TENANTS}", key_id="key_1", base_model="base",
        adapter_id=f"ad_{number % 10}", revision_id=f"rev_{number % 10}", replica_id="rep_1", outcome="done",
        started_at_ms=now - 200, settled_at_ms=now, input_tokens=100, cached_tokens=32, output_tokens=20,
        kv_page_ms=1_601,
    )  # fmt: skip


def report_ms(engine: sa.Engine, tenant_id: str, tries: int = 40) -> float:
    """The 95th percentile of a month's usage by day and adapter."""
    took = []
    for _ in range(tries):
        begun = time.monotonic()
        with unit_of_work(engine) as session:
            end = database_now(session).replace(minute=0, second=0, microsecond=0)
            queries.usage(
                session, tenant_id=tenant_id, start=end - timedelta(days=30), end=end, bucket="1d", group_by="adapter"
            )
        took.append((time.monotonic() - begun) * 1000)
    return quantile(took, 0.95)


def timed_close(engine: sa.Engine, tenant_ids: str) -> float:
    """Seconds to close every subscribed tenant that is not closed yet; the ids are only printed."""
    begun = time.monotonic()
    made, failed = closing.close_all(engine)
    took = time.monotonic() - begun
    assert not failed, failed[:3]
    click.echo(f"{len(made)} invoices of {tenant_ids} in {took:.1f} s")
    return took


def reconcile_s(engine: sa.Engine, redis_url: str) -> float:
    """Seconds of a reconciliation that must find no difference in money."""
    with connect_redis(RedisSettings(redis_url=redis_url), BillingSettings()) as redis:
        begun = time.monotonic()
        with unit_of_work(engine) as session:
            session.connection().exec_driver_sql("SET LOCAL statement_timeout = 0")
            found = audit.reconcile(session, redis)
        assert found.ledger_drift_nanos == 0, found.ledger_drift_nanos
        return time.monotonic() - begun


@click.command()
@click.option(
    "--records", default=1_000_000, show_default=True, help="Seeded records of 1,000 tenants, and of one more."
)
@click.option("--events", default=20_000, show_default=True, help="Events to record.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(records: int, events: int, out: Path | None) -> None:
    """Measure billing and print each goal with its figure."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, database(Path(folder)) as engine, running_valkey(Path(folder)) as url:
        begun = time.monotonic()
        seed(engine, prefix="tn_many_", tenants=TENANTS, records=records, first=0)
        click.echo(f"{records} records of {TENANTS} tenants seeded in {time.monotonic() - begun:.0f} s")
        figures["events recorded a second, onto the seeded records"] = record_events(engine, url, events)
        figures["seconds to close the seeded records of 1,000 tenants"] = timed_close(engine, f"{TENANTS} tenants")
        seed(engine, prefix="tn_one_", tenants=1, records=records, first=records)
        figures["p95 of a report on a month of the one tenant, ms"] = report_ms(engine, "tn_one_0")
        figures["seconds to close as many records of one tenant"] = timed_close(engine, "one tenant")
        figures["seconds of a whole reconciliation"] = reconcile_s(engine, url)
    missed = False
    for name, (sign, goal) in GOALS.items():
        met = figures[name] >= goal if sign == ">=" else figures[name] <= goal
        missed |= not met
        click.echo(f"{'met' if met else 'MISSED':6} {name}: {figures[name]:,.1f} (goal {sign} {goal:,.0f})")
    if out is not None:
        out.write_text(json.dumps(figures, indent=2))
    sys.exit(missed)


if __name__ == "__main__":
    main()
