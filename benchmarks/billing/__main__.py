"""Measures billing: recording, closing, reporting and Stripe's webhooks, on a real Postgres and Valkey of their own.

Run: ``python -m benchmarks.billing``, with ``--full`` for ten minutes of recording onto ten million records, which
takes about an hour and 20 GB of disk, and with ``--only-webhooks`` for a minute of webhooks alone. Prints its progress,
then each goal with its figure, and writes JSON; exits with status 1 when a goal is missed. Records are seeded by SQL
through every constraint (``benchmarks.billing.seed``).
"""

import json
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import click
import psycopg
import sqlalchemy as sa
from alembic import command

from benchmarks.billing.close import CloseProcess, repeated_closes, timed_close
from benchmarks.billing.ingest import TENANTS, record_events, record_paced
from benchmarks.billing.reconciliation import timed_runs
from benchmarks.billing.reports import report_ms, what_if_s, wide_reports_ms
from benchmarks.billing.seed import WIDE, WIDE_RECORDS, seed, verify
from benchmarks.billing.webhooks import post_webhooks
from billing.reconciliation import totals
from billing.settings import BillingSettings
from billing.worker import connect_redis
from core import clock, db
from core.db import unit_of_work
from core.settings import PostgresSettings, RedisSettings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import alembic_config, create_database, running, running_valkey
from tests.fixtures.least_privilege import POSTGRES_ROLES

RATE: Final = 1_000
WEBHOOKS_A_SECOND: Final = 200
FULL_RECORDS: Final = 10_000_000
FULL_SECONDS: Final = 600
CLOSED_RECORDS: Final = 1_000_000
GOALS: Final = {
    "events recorded a second, onto the seeded records": (">=", 1_000.0),
    "events recorded a second, of 1,000 that arrive": (">=", 990.0),
    "events recorded a second, of 1,000 that arrive, while a period closes": (">=", 990.0),
    "p99 lag in seconds at 1,000 events a second": ("<=", 2.0),
    "p99 lag in seconds at 1,000 events a second, while a period closes": ("<=", 2.0),
    "seconds to close a million seeded records of 1,000 tenants, while 1,000 events a second arrive": ("<=", 60.0),
    "seconds to close a million records of 1,000 tenants, twice": ("<=", 60.0),
    "seconds to close a million records of one tenant, twice": ("<=", 60.0),
    "invoices that differ in a second database": ("<=", 0.0),
    "seconds of a what-if on the one tenant's month": ("<=", 60.0),
    "seconds to close a million records of one tenant": ("<=", 60.0),
    "p95 of a report on a month of the one tenant, ms": ("<=", 300.0),
    "p95 of a month of 180,000 sums by hour, in all, ms": ("<=", 300.0),
    "p95 of a month of 180,000 sums by hour, by adapter, ms": ("<=", 300.0),
    "p95 of a month of 180,000 sums by hour, by adapter, key and model, ms": ("<=", 300.0),
    "seconds of a reconciliation on demand": ("<=", 120.0),
    "seconds of a full reconciliation": ("<=", 120.0),
    "seconds of an hourly reconciliation": ("<=", 5.0),
    "p99 of the answer to a webhook at 200 a second, ms": ("<=", 200.0),
}


@contextmanager
def server(home: Path) -> Iterator[str]:
    """The address of a Postgres that syncs its commits to the disk."""
    started = embedded_servers.postgres(
        home / "pg", home, port=free_port(), password=secrets.token_hex(8), roles=POSTGRES_ROLES
    )
    with running(started.program):
        yield started.url


@contextmanager
def database(server_url: str, name: str) -> Iterator[tuple[sa.Engine, PostgresSettings]]:
    """An empty database, and how to connect to it."""
    settings = create_database(server_url, name)
    command.upgrade(alembic_config(settings), "head")
    engine = db.connect(settings)
    yield engine, settings
    engine.dispose()


@contextmanager
def other_database(server_url: str, name: str) -> Iterator[sa.Engine]:
    """A database for one measurement, which is dropped after it."""
    with database(server_url, name) as (engine, _):
        yield engine
    with psycopg.connect(server_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}"')


def close_history(engine: sa.Engine, records: int) -> None:
    """Close what is older than the newest million of the records, so that a period has as many."""
    share = CLOSED_RECORDS / records
    if share < 1:
        timed_close(engine, "the time before the measured period", clock.now() - timedelta(days=27 * share, hours=1))


def reconcile_s(engine: sa.Engine, redis_url: str) -> float:
    """Seconds of a reconciliation that must find no difference in money."""
    with connect_redis(RedisSettings(redis_url=redis_url), BillingSettings()) as redis:
        begun = time.monotonic()
        with unit_of_work(engine) as session:
            session.connection().exec_driver_sql("SET LOCAL statement_timeout = 0")
            found = totals.reconcile(session, redis)
        assert found.ledger_drift_nanos == 0, found.ledger_drift_nanos
        return time.monotonic() - begun


def measure_usage(
    engine: sa.Engine, settings: PostgresSettings, server_url: str, url: str, *, records: int, seconds: int, events: int
) -> dict[str, float]:
    """The figures of recording, closing, reporting and reconciling."""
    figures: dict[str, float] = {}
    closed = min(records, CLOSED_RECORDS)
    seed(engine, prefix="tn_many_", tenants=TENANTS, records=records, first=0)
    seed(engine, prefix="tn_wide_", tenants=1, records=WIDE_RECORDS, first=records, owners=WIDE)
    verify(engine, records + WIDE_RECORDS)
    close_history(engine, records)
    figures["events recorded a second, onto the seeded records"] = record_events(engine, url, events)
    paced = record_paced(engine, url, rate=RATE, seconds=seconds)
    figures["events recorded a second, of 1,000 that arrive"] = paced.events_a_second
    figures["p99 lag in seconds at 1,000 events a second"] = paced.lag_p99_s
    closer = CloseProcess(settings, f"{TENANTS} tenants")
    closer.start()
    paced = record_paced(engine, url, rate=RATE, seconds=seconds, counts=closer.is_running)
    figures["events recorded a second, of 1,000 that arrive, while a period closes"] = paced.events_a_second
    figures["p99 lag in seconds at 1,000 events a second, while a period closes"] = paced.lag_p99_s
    figures["seconds to close a million seeded records of 1,000 tenants, while 1,000 events a second arrive"] = (
        closer.seconds()
    )
    for name, took_ms in wide_reports_ms(engine, "tn_wide_0").items():
        figures[f"p95 of a month of 180,000 sums by hour, {name}, ms"] = took_ms
    seed(engine, prefix="tn_one_", tenants=1, records=closed, first=records + WIDE_RECORDS)
    figures["p95 of a report on a month of the one tenant, ms"] = report_ms(engine, "tn_one_0")
    figures["seconds of a what-if on the one tenant's month"] = what_if_s(engine, "tn_one_0")
    figures["seconds to close a million records of one tenant"] = timed_close(engine, "one tenant")
    figures["seconds of a reconciliation on demand"] = reconcile_s(engine, url)
    figures["seconds of a full reconciliation"], figures["seconds of an hourly reconciliation"] = timed_runs(engine)
    repeated = repeated_closes(partial(other_database, server_url), tenants=TENANTS, records=closed, at=clock.now())
    figures["seconds to close a million records of 1,000 tenants, twice"] = repeated.many_s
    figures["seconds to close a million records of one tenant, twice"] = repeated.one_s
    figures["invoices that differ in a second database"] = repeated.differing
    return figures


@click.command()
@click.option(
    "--records",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(min=500_000),
    help="Seeded records, over 1,000 tenants. Of fewer than the least, a tenant owes less than a cent.",
)
@click.option("--seconds", default=30, show_default=True, help="How long events arrive, at 1,000 a second.")
@click.option("--events", default=20_000, show_default=True, help="Events to record as fast as possible.")
@click.option("--webhook-seconds", default=60, show_default=True, help="How long webhooks arrive, at 200 a second.")
@click.option("--only-webhooks", is_flag=True, help="Measure the webhooks alone.")
@click.option("--full", is_flag=True, help="Ten million records and ten minutes: the project's goals.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(
    records: int,
    seconds: int,
    events: int,
    webhook_seconds: int,
    out: Path | None,
    *,
    only_webhooks: bool,
    full: bool,
) -> None:
    """Measure billing and print each goal with its figure."""
    if full:
        records, seconds = FULL_RECORDS, FULL_SECONDS
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        server(Path(folder)) as server_url,
        database(server_url, "billing") as (engine, settings),
        running_valkey(Path(folder)) as url,
    ):
        webhooks = post_webhooks(engine, settings, url, Path(folder), rate=WEBHOOKS_A_SECOND, seconds=webhook_seconds)
        click.echo(
            f"{WEBHOOKS_A_SECOND * webhook_seconds} webhooks with {webhooks.events} events in {webhook_seconds} s; all "
            f"are handled {webhooks.handled_s:.0f} s after the first"
        )
        figures["p99 of the answer to a webhook at 200 a second, ms"] = webhooks.answer_p99_ms
        if not only_webhooks:
            figures |= measure_usage(engine, settings, server_url, url, records=records, seconds=seconds, events=events)
    missed = False
    for name, (sign, goal) in GOALS.items():
        if name not in figures:
            continue
        met = figures[name] >= goal if sign == ">=" else figures[name] <= goal
        missed |= not met
        click.echo(f"{'met' if met else 'MISSED':6} {name}: {figures[name]:,.2f} (goal {sign} {goal:,.0f})")
    if out is not None:
        out.write_text(json.dumps(figures, indent=2))
    sys.exit(missed)


if __name__ == "__main__":
    main()
