"""A stage for billing's tests: a real Postgres and Valkey, tenants with prices, and usage from the stream."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import redis as redis_client
import sqlalchemy as sa

from billing.invoices import queries
from billing.invoicing import closing
from billing.ledger import AccountRef, balance_nanos
from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.reconciliation import engine_usage, totals
from billing.settings import BillingSettings
from billing.subscriptions import assignments
from billing.tax import profiles, rate_table
from billing.tax.parties import Seller
from billing.usage.metering import Meter
from billing.usage.stream import ReclaimedPage, UsageStream
from billing.usage.sums import hour_of
from billing.worker import connect_redis
from control_plane.database_roles import BILLING
from core import clock, db, redis_keys
from core.contracts.engine_usage import EngineUsageHour, EngineUsageReport
from core.contracts.grants import Prices
from core.contracts.usage import UsageEvent
from core.db import unit_of_work
from core.ids import new_id
from core.settings import RedisSettings
from tests.fixtures.least_privilege import as_role
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator
from tests.fixtures.wallet import Wallet
from tests.integration.billing.payments.conftest import PaymentStage

MODEL = "smollm2-135m-instruct"
PRICES = Prices(input_nanos=150, cached_input_nanos=75, output_nanos=600, kv_page_second_nanos=1_000)


def month_start(now: datetime, *, ago: int) -> datetime:
    year, month = divmod(now.year * 12 + now.month - 1 - ago, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC)


class Stage:
    def __init__(self, engine: sa.Engine, redis: redis_client.Redis, settings: BillingSettings) -> None:
        self.engine = engine
        self.redis = redis
        self.settings = settings
        self.stream = UsageStream(redis, "tests")
        self.stream.ensure_group()
        self.meter = Meter(engine, self.stream, settings)

    def tenant(self, prices: Prices = PRICES, *, card: PriceCard | None = None) -> str:
        """A tenant with its own plan."""
        tenant_id, plan_id = new_id("tn"), new_id("pl")
        with unit_of_work(self.engine) as session:
            price_book.add_version(session, plan_id=plan_id, card=card or PriceCard.of_all_models(prices))
            assignments.assign_plan(session, tenant_id=tenant_id, plan_id=plan_id)
        return tenant_id

    def plan_of(self, tenant_id: str) -> str:
        return self.value("SELECT plan_id FROM plan_assignments WHERE tenant_id = :t", t=tenant_id)

    def event(self, tenant_id: str, **changes) -> UsageEvent:
        settled_at_ms = changes.pop("settled_at_ms", clock.now_ms())
        values = {
            "request_id": new_id("req"),
            "tenant_id": tenant_id,
            "key_id": "key_1",
            "base_model": MODEL,
            "adapter_id": None,
            "revision_id": None,
            "replica_id": "rep_1",
            "outcome": "done",
            "started_at_ms": settled_at_ms - 200,
            "settled_at_ms": settled_at_ms,
            "input_tokens": 100,
            "cached_tokens": 32,
            "output_tokens": 20,
            "kv_page_ms": 1_601,
        }
        return UsageEvent(**(values | changes))

    def publish(self, *payloads: UsageEvent | bytes) -> list[bytes]:
        pipeline = self.redis.pipeline(transaction=False)
        for payload in payloads:
            encoded = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
            pipeline.xadd(redis_keys.USAGE_STREAM, {"event": encoded})
        return pipeline.execute()

    def drain(self) -> None:
        """Meter every unread event."""
        while entries := self.stream.read(count=self.settings.billing_batch_events_max, block_ms=None):
            self.meter.process(entries)

    def retry_pending(self) -> ReclaimedPage:
        """Retry every pending event once."""
        claim = self.stream.reclaim(cursor=b"0-0", idle_ms=0, count=self.settings.billing_batch_events_max)
        self.meter.process(claim.entries)
        return claim

    def bill(self, *events: UsageEvent) -> None:
        self.publish(*events)
        self.drain()

    def close(self, until: datetime | None = None):
        """Close all tenants. A few tokens make an invoice here, over $0.00."""
        made, failed = closing.close_all(self.engine, until, least_cents=0)
        assert failed == []
        return made

    def invoice(self, invoice_id: str, tenant_id: str | None = None):
        with unit_of_work(self.engine) as session:
            return queries.read_document(session, invoice_id, tenant_id=tenant_id)

    def count_on_engine(self, tenant_id: str, *, boot: str = "boot_1", hour: datetime | None = None, **counts) -> None:
        """What an engine has counted of a tenant's requests whose ids were made in this hour."""
        hour_ms = clock.to_ms(hour_of(hour or self.now()))
        counted = EngineUsageHour(tenant_id=tenant_id, hour_ms=hour_ms, **({"requests": 1} | counts))
        report = EngineUsageReport(replica_id="rep_1", boot_id=boot, base_model=MODEL, hours=(counted,))
        with unit_of_work(self.engine) as session:
            engine_usage.store(session, [report])

    def tax(self, rate_ppm: int = 190_000) -> None:
        """The seller and its tax from now on."""
        with unit_of_work(self.engine) as session:
            profiles.set_seller(session, Seller(legal_name="Tenora GmbH", country="DE", tax="fixed"))
            rate_table.add_rate(session, country="DE", name="VAT", rate_ppm=rate_ppm, effective_from=None)

    def balance(self, kind: str, tenant_id: str | None = None) -> int:
        """Of an account of the ledger, in nanodollars."""
        with unit_of_work(self.engine) as session:
            return balance_nanos(session, AccountRef(kind, tenant_id))

    def reconcile(self):
        with unit_of_work(self.engine) as session:
            return totals.reconcile(session, self.redis)

    def now(self) -> datetime:
        return self.value("SELECT clock_timestamp()")

    def ago_ms(self, **length) -> int:
        return clock.to_ms(self.now() - timedelta(**length))

    def value(self, sql: str, **parameters):
        with self.engine.connect() as connection:
            return connection.execute(sa.text(sql), parameters).scalar_one()

    def rows(self, sql: str, **parameters):
        with self.engine.connect() as connection:
            return connection.execute(sa.text(sql), parameters).mappings().all()

    def change(self, sql: str, **parameters) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(sql), parameters)

    def force(self, sql: str, **parameters) -> None:
        """Change rows as the owner of the tables can, past every trigger and reference."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.execute(sa.text(sql), parameters)

    @property
    def pending(self) -> int:
        return self.redis.xpending(redis_keys.USAGE_STREAM, redis_keys.USAGE_GROUP)["pending"]

    def dead_letters(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.redis.xrange(redis_keys.USAGE_DEAD_LETTERS)]


@pytest.fixture
def stage(engine, redis_settings: RedisSettings) -> Iterator[Stage]:
    settings = BillingSettings(billing_attempts_max=3, billing_unpriced_attempts_max=5)
    with connect_redis(redis_settings, settings) as redis:
        yield Stage(engine, redis, settings)


@pytest.fixture
def as_billing(postgres_settings) -> Iterator[sa.Engine]:
    """Postgres with the rights of the billing worker."""
    engine = db.connect(as_role(postgres_settings, BILLING))
    yield engine
    engine.dispose()


@pytest.fixture
def wallet(stage) -> Wallet:
    return Wallet(stage)


class Collected:
    """Closed periods that are collected at the simulator, with the real rooms of invoices and credits."""

    def __init__(self, stage: Stage, payments: PaymentStage) -> None:
        self.stage = stage
        self.payments = payments

    def invoice(self, card: str | None = "visa", tokens: int = 10_000_000):
        """A tenant with an invoice: of $6.00, for ten million output tokens."""
        tenant = self.payments.tenant(card, tenant_id=self.stage.tenant())
        return tenant, self.bill(tenant, tokens)

    def bill(self, tenant: str, tokens: int = 10_000_000):
        """A further invoice of the tenant."""
        self.stage.bill(self.stage.event(tenant, input_tokens=0, cached_tokens=0, output_tokens=tokens, kv_page_ms=0))
        (invoice,) = [each for each in self.stage.close() if each.tenant_id == tenant]
        assert invoice.total_cents == tokens * 6 // 100_000
        return invoice

    def balance(self, kind: str, tenant_id: str | None = None) -> int:
        return self.stage.balance(kind, tenant_id)


@pytest.fixture(scope="session")
def shared_simulator(tmp_path_factory) -> Iterator[RunningSimulator]:
    """Tests leave customers and events in it."""
    with running_simulator(tmp_path_factory.mktemp("stripe") / "home") as simulator:
        yield simulator


@pytest.fixture
def collected(stage, shared_simulator) -> Iterator[Collected]:
    yield Collected(stage, PaymentStage(stage.engine, shared_simulator))
    shared_simulator.control("DELETE", "faults")
