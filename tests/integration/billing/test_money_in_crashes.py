"""Crashes of the billing worker, of clients and of Postgres, at any instant, while usage arrives and invoices are paid
at the Stripe simulator: money adds up after each crash, and at the end all is booked once, here and at Stripe.
"""

import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlmodel import Session

from billing.reconciliation.stripe import check_stripe
from billing.settings import BillingSettings
from billing.worker import connect_redis
from control_plane import operations
from core import db
from core.settings import PostgresSettings, RedisSettings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import create_database, wait_until
from tests.fixtures import billing_worker, fork_server
from tests.fixtures.least_privilege import POSTGRES_ROLES
from tests.fixtures.money_checks import MoneyChecks
from tests.fixtures.random_life import World, command, new_world
from tests.fixtures.stripe_simulator import TEST_KEY, RunningSimulator, running_simulator
from tests.integration.billing.conftest import Stage
from tests.integration.billing.payments.conftest import PaymentStage

DEAR_TOKENS = 100_000  # hundreds of dollars
VICTIMS = ("worker", "life", "postgres")
QUEUED = "SELECT count(*) FROM payment_queues WHERE next_attempt_at IS NOT NULL AND stopped_at IS NULL"
STOPPED = "SELECT tenant_id, stopped_reason FROM payment_queues WHERE stopped_at IS NOT NULL"
UNHANDLED = "SELECT count(*) FROM stripe_events WHERE state = 'stored'"
LEASES_END = "UPDATE stripe_events SET next_attempt_at = now() WHERE state = 'stored'"  # of workers that were killed
AT_STRIPE = """
SELECT q.customer_id,
    (SELECT coalesce(sum(amount_cents), 0) FROM received_payments WHERE tenant_id = q.tenant_id)::bigint AS paid,
    (SELECT coalesce(sum(r.amount_cents), 0) FROM returned_payments r JOIN received_payments p USING (payment_intent)
        WHERE p.tenant_id = q.tenant_id)::bigint AS returned
FROM payment_queues q
"""


class Platform:
    """A Postgres of its own, a worker and a client that lives at random; ``crash`` ends one of them at once."""

    def __init__(self, home: Path, redis: RedisSettings, simulator: RunningSimulator, chance: random.Random) -> None:
        self._log, self._chance = home / "log", chance
        self._postgres = embedded_servers.postgres(
            home / "pg", home, port=free_port(), password="test", roles=POSTGRES_ROLES,
            options=("-c", "fsync=off"),  # a killed server leaves what it wrote to the system
        )  # fmt: skip
        self._processes: dict[str, subprocess.Popen[bytes]] = {"postgres": self._postgres.program.start()}
        self._environment = {
            "TENORA_STRIPE_API_BASE": simulator.url,
            "TENORA_STRIPE_API_KEY": TEST_KEY,
            "TENORA_STRIPE_CONNECT_TIMEOUT_S": "1",
            "TENORA_STRIPE_READ_TIMEOUT_S": "5",
            "TENORA_CONTROL_PUBLIC_URL": "https://api.example.com",
            "TENORA_PAYMENTS_LEASE_S": "7",
            "TENORA_PAYMENTS_RETRY_FIRST_MS": "10",
            "TENORA_PAYMENTS_CATCH_UP_S": "1",
        }
        self._redis = redis
        self._engine: sa.Engine | None = None
        self.settings = PostgresSettings()
        self.world = World((), ())

    def begin(self) -> sa.Engine:
        """Start Postgres, with the schema, and no other process yet. Returns the test's connections."""
        self._until_postgres_is_ready()
        self.settings = create_database(self._postgres.url, "crashed")
        operations.migrate(self.settings)
        self._engine = db.connect(self.settings)
        return self._engine

    def live(self, world: World) -> None:
        self.world = world
        self.start("worker")
        self.start("life")

    def start(self, name: str) -> None:
        dsn = self.settings.postgres_dsn
        if name == "postgres":
            self._processes[name] = self._postgres.program.start()
            self._until_postgres_is_ready()
        elif name == "worker":
            env = billing_worker.environment(dsn, self._redis.redis_url) | self._environment
            self._processes[name] = billing_worker.start(env, self._log)
        else:
            with self._log.open("ab") as log:
                env = {**os.environ, "TENORA_POSTGRES_DSN": dsn}
                seed = self._chance.randrange(2**32)
                self._processes[name] = fork_server.start(command(self.world, seed), env, log)

    def crash(self, name: str) -> None:
        """End a process and its children without a warning."""
        process = self._processes[name]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        for child in map(int, children):
            if Path(f"/proc/{child}").exists():
                os.kill(child, signal.SIGKILL)
        process.wait()

    def require_alive(self) -> None:
        dead = {name: process.returncode for name, process in self._processes.items() if process.poll() is not None}
        assert not dead, f"{dead} ended by themselves: {self._log.read_text()[-3000:]}"

    def end(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _until_postgres_is_ready(self) -> None:
        """A backend that was forked as the server was killed may live for a moment. Postgres does not start beside it,
        and a supervisor starts it again.
        """

        def is_ready() -> bool:
            if self._processes["postgres"].poll() is not None:
                self._processes["postgres"] = self._postgres.program.start()
            return self._postgres.program.ready()

        wait_until(is_ready, timeout_s=120, what="Postgres")


def at_stripe(payments: PaymentStage, customer: str) -> tuple[int, int]:
    """The cents that arrived from a customer, and that went back."""
    charges = list(payments.sdk.v1.charges.list({"customer": customer, "limit": 100}).auto_paging_iter())
    return sum(each.amount for each in charges if each.paid), sum(each.amount_refunded for each in charges)


@pytest.fixture
def simulator(tmp_path):
    """One of its own: the events of other tests' customers would all be listed."""
    with running_simulator(tmp_path / "stripe") as found:
        yield found


@pytest.fixture
def platform(server_data, redis_settings, simulator, request):
    home = server_data / f"crashing-{simulator.url.rpartition(':')[2]}"
    home.mkdir()
    found = Platform(home, redis_settings, simulator, random.Random(request.node.callspec.params["seed"]))
    yield found
    found.end()


@pytest.mark.timeout(3600)  # every crash of Postgres takes a recovery, and every check reads all money
@pytest.mark.scenario(164)
@pytest.mark.parametrize(
    ("crashes", "seed"), [(3, 1), *(pytest.param(40, seed, marks=pytest.mark.soak) for seed in (2, 3))]
)
def test_crashes_leave_money_whole_here_and_at_stripe(platform, redis_settings, simulator, crashes, seed):
    chance = random.Random(seed)
    engine = platform.begin()
    settings = BillingSettings()
    with connect_redis(redis_settings, settings) as redis:
        stage = Stage(engine, redis, settings)
        payments = PaymentStage(engine, simulator)
        world, checks = new_world(engine), MoneyChecks(engine)
        for tenant_id in world.tenant_ids:
            payments.tenant("visa", tenant_id=tenant_id)
        platform.live(world)
        published = []
        for number in range(crashes):
            for _ in range(chance.randint(1, 20)):
                published.append(stage.event(chance.choice(world.tenant_ids), output_tokens=chance.randint(0, 100)))
                stage.publish(published[-1])
            more = stage.value("SELECT count(*) FROM transfers") + chance.randint(1, 25)
            wait_until(lambda: _transfers(engine, platform) >= more, timeout_s=120, what="transfers")  # noqa: B023 - at once
            victim = VICTIMS[number] if number < len(VICTIMS) else chance.choice(VICTIMS)
            platform.crash(victim)
            engine.dispose()
            platform.start(victim)
            checks.check()
        platform.crash("life")
        published += [stage.event(tenant_id, output_tokens=DEAR_TOKENS) for tenant_id in world.tenant_ids]
        stage.publish(*published[-len(world.tenant_ids) :])
        wait_until(lambda: stage.reconcile().unprocessed_events == 0, timeout_s=120, what="the end of the stream")
        assert stage.close(), "what no credit covers is collected"
        wait_until(lambda: stage.value(QUEUED) == 0, timeout_s=120, what="the end of payments")
        stage.change(LEASES_END)
        wait_until(lambda: stage.value(UNHANDLED) == 0, timeout_s=120, what="the last event of Stripe's")
        platform.crash("worker")
    checks.check()
    recorded = Counter(row["request_id"] for row in stage.rows("SELECT request_id FROM usage_records"))
    assert [recorded[each.request_id] for each in published] == [1] * len(published)
    assert stage.rows(STOPPED) == []
    with Session(engine) as session:
        assert check_stripe(session) == []
    found = stage.rows(AT_STRIPE)
    assert {row["customer_id"]: (row["paid"], row["returned"]) for row in found} == {
        row["customer_id"]: at_stripe(payments, row["customer_id"]) for row in found
    }
    assert sum(row["paid"] for row in found) > 0


def _transfers(engine: sa.Engine, platform: Platform) -> int:
    platform.require_alive()
    with engine.connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM transfers").scalar_one()
