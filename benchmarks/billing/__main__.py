"""Measures billing: recording, closing, reporting and Stripe's webhooks, on a real Postgres and Valkey of their own.

Run: ``python -m benchmarks.billing``, with ``--full`` for ten minutes of recording onto ten million records, and with
``--only-webhooks`` for a minute of webhooks alone. Prints each goal with its figure and writes JSON; exits with status
1 when a goal is missed. Records are seeded by SQL through every constraint (``benchmarks.billing.seed``).
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

from benchmarks.billing.close import CloseProcess, timed_close
from benchmarks.billing.ingest import TENANTS, record_events, record_paced
from benchmarks.billing.reconciliation import timed_runs
from benchmarks.billing.seed import PRICES, seed
from benchmarks.billing.webhooks import post_webhooks
from benchmarks.load import quantile
from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.reconciliation import audit
from billing.settings import BillingSettings
from billing.simulation import what_if
from billing.usage import queries
from billing.worker import connect_redis
from core import db
from core.db import database_now, unit_of_work
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
    "p99 lag in seconds at 1,000 events a second": ("<=", 2.0),
    "p99 lag in seconds at 1,000 events a second, while a period closes": ("<=", 2.0),
    "seconds to close the seeded records of 1,000 tenants, while 1,000 events a second arrive": ("<=", 60.0),
    "seconds of a what-if on the one tenant's month": ("<=", 60.0),
    "seconds to close a million records of one tenant": ("<=", 60.0),
    "p95 of a report on a month of the one tenant, ms": ("<=", 300.0),
    "seconds of a reconciliation on demand": ("<=", 120.0),
    "seconds of a full reconciliation": ("<=", 120.0),
    "seconds of an hourly reconciliation": ("<=", 5.0),
    "p99 of the answer to a webhook at 200 a second, ms": ("<=", 200.0),
}


@contextmanager
def database(home: Path) -> Iterator[tuple[sa.Engine, PostgresSettings]]:
    """An empty database on a Postgres that syncs its commits to the disk, and how to connect to it."""
    server = embedded_servers.postgres(
        home / "pg", home, port=free_port(), password=secrets.token_hex(8), roles=POSTGRES_ROLES
    )
    with running(server.program):
        settings = create_database(server.url, "billing")
        command.upgrade(alembic_config(settings), "head")
        engine = db.connect(settings)
        yield engine, settings
        engine.dispose()


def what_if_s(engine: sa.Engine, tenant_id: str) -> float:
    """Seconds to rate a tenant's month again, with an output token that costs a nanodollar more."""
    card = PriceCard.of_all_models(msgspec.structs.replace(PRICES, output_nanos=PRICES.output_nanos + 1))
    begun = time.monotonic()
    with unit_of_work(engine) as session:
        session.connection().exec_driver_sql("SET LOCAL statement_timeout = 0")
        end = database_now(session)
        version = price_book.load(session, [tenant_id]).in_force(tenant_id, end)
        assert version is not None, "the seeds give the tenant a plan"
        (found,) = what_if.simulate(
            session, plan_id=version.plan_id, card=card, start=end - timedelta(days=30), end=end, after="", limit=10
        )
    assert found.simulated_nanos > found.amount_nanos
    return time.monotonic() - begun


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


def reconcile_s(engine: sa.Engine, redis_url: str) -> float:
    """Seconds of a reconciliation that must find no difference in money."""
    with connect_redis(RedisSettings(redis_url=redis_url), BillingSettings()) as redis:
        begun = time.monotonic()
        with unit_of_work(engine) as session:
            session.connection().exec_driver_sql("SET LOCAL statement_timeout = 0")
            found = audit.reconcile(session, redis)
        assert found.ledger_drift_nanos == 0, found.ledger_drift_nanos
        return time.monotonic() - begun


def measure_usage(
    engine: sa.Engine, settings: PostgresSettings, url: str, *, records: int, seconds: int, events: int
) -> dict[str, float]:
    """The figures of recording, closing, reporting and reconciling."""
    figures: dict[str, float] = {}
    begun = time.monotonic()
    seed(engine, prefix="tn_many_", tenants=TENANTS, records=records, first=0)
    click.echo(f"{records} records of {TENANTS} tenants seeded in {time.monotonic() - begun:.0f} s")
    figures["events recorded a second, onto the seeded records"] = record_events(engine, url, events)
    paced = record_paced(engine, url, rate=RATE, seconds=seconds)
    click.echo(f"{paced.events_a_second:.0f} events a second recorded for {seconds} s")
    figures["p99 lag in seconds at 1,000 events a second"] = paced.lag_p99_s
    closer = CloseProcess(settings, f"{TENANTS} tenants")
    closer.start()
    paced = record_paced(engine, url, rate=RATE, seconds=seconds)
    figures["p99 lag in seconds at 1,000 events a second, while a period closes"] = paced.lag_p99_s
    figures["seconds to close the seeded records of 1,000 tenants, while 1,000 events a second arrive"] = (
        closer.seconds()
    )
    seed(engine, prefix="tn_one_", tenants=1, records=min(records, CLOSED_RECORDS), first=records)
    figures["p95 of a report on a month of the one tenant, ms"] = report_ms(engine, "tn_one_0")
    figures["seconds of a what-if on the one tenant's month"] = what_if_s(engine, "tn_one_0")
    figures["seconds to close a million records of one tenant"] = timed_close(engine, "one tenant")
    figures["seconds of a reconciliation on demand"] = reconcile_s(engine, url)
    figures["seconds of a full reconciliation"], figures["seconds of an hourly reconciliation"] = timed_runs(engine)
    return figures


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Seeded records, over 1,000 tenants.")
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
        database(Path(folder)) as (engine, settings),
        running_valkey(Path(folder)) as url,
    ):
        webhooks = post_webhooks(engine, settings, url, Path(folder), rate=WEBHOOKS_A_SECOND, seconds=webhook_seconds)
        click.echo(
            f"{WEBHOOKS_A_SECOND * webhook_seconds} webhooks with {webhooks.events} events in {webhook_seconds} s; all "
            f"are handled {webhooks.handled_s:.0f} s after the first"
        )
        figures["p99 of the answer to a webhook at 200 a second, ms"] = webhooks.answer_p99_ms
        if not only_webhooks:
            figures |= measure_usage(engine, settings, url, records=records, seconds=seconds, events=events)
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
