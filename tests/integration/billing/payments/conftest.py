"""A stage for payments: a real Postgres, the simulator as a process, the tests' books, and a clock that tests move."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session

from billing.payments import event_store, outbox
from billing.payments.books import Books
from billing.payments.dunning import DunningRounds
from billing.payments.event_handling import EventHandler
from billing.payments.operations import Operation, PushedLine, PushInvoice
from billing.payments.queue import PaymentQueues
from billing.payments.runner import PaymentRunner, Performer
from billing.payments.settings import PaymentSettings
from billing.stripe_client import StripeAccount
from core.db import database_now, unit_of_work
from core.ids import new_id
from tests.fixtures.payment_books import TABLES, TestBooks
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator
from tests.integration.billing.stripe.conftest import settings_of


class PaymentStage:
    """``since`` is when the stage began by Stripe's clock: events before it are another test's."""

    def __init__(
        self, engine: sa.Engine, simulator: RunningSimulator, books: Books | None = None, **changes: Any
    ) -> None:
        self.engine = engine
        self.simulator = simulator
        self.offset = timedelta()
        self.settings = PaymentSettings(payments_retry_first_ms=10, payments_retry_longest_ms=50, **changes)
        self.books = books or TestBooks()
        self.account = StripeAccount(settings_of(simulator, stripe_read_timeout_s=3))
        self.sdk = simulator.sdk()
        self.queues = PaymentQueues(engine, self.settings, self.clock)
        self.performer = Performer(self.account, self.queues, self.books)
        self.runner = PaymentRunner(self.queues, self.performer)
        self.events = EventHandler(engine, self.account, self.books, self.settings, self.clock)
        self.dunning = DunningRounds(engine, self.settings, self.books, self.clock)
        self.seen: set[str] = set()
        with engine.begin() as connection:
            connection.execute(sa.text(TABLES))

    def clock(self, session: Session) -> datetime:
        return database_now(session) + self.offset

    def tenant(self, card: str | None = "visa", *, test_clock: str | None = None, tenant_id: str | None = None) -> str:
        """A tenant with a customer at Stripe, whose default card is one of the test cards."""
        tenant_id = tenant_id or new_id("tn")
        with unit_of_work(self.engine) as session:
            outbox.open_queue(session, tenant_id, name="Ada", email="ada@example.com", test_clock=test_clock)
        assert self.work() == ["done"]
        if card is not None:
            self.save_card(tenant_id, card)
        return tenant_id

    def customer(self, tenant_id: str) -> str:
        return self.value("SELECT customer_id FROM payment_queues WHERE tenant_id = :t", t=tenant_id)

    def save_card(self, tenant_id: str, card: str) -> str:
        """Attach a card that can be saved, and let it behave like the wanted one from then on."""
        customer = self.customer(tenant_id)
        saved = self.sdk.v1.payment_methods.attach("pm_card_visa", {"customer": customer})
        self.simulator.control("POST", f"payment_methods/{saved.id}", {"card": f"pm_card_{card}"})
        self.sdk.v1.customers.update(customer, {"invoice_settings": {"default_payment_method": saved.id}})
        return saved.id

    def invoice(self, tenant_id: str, *cents: int) -> str:
        """Queue the push of an invoice of ours with these lines."""
        invoice_id = new_id("inv")
        lines = tuple(
            PushedLine(id=f"il_{number}", description=f"Line {number}", amount_cents=amount)
            for number, amount in enumerate(cents)
        )
        self.change("INSERT INTO test_invoices VALUES (:i, :c)", i=invoice_id, c=sum(cents))
        self.enqueue(
            tenant_id, PushInvoice(invoice_id=invoice_id, number="TNR-000001", lines=lines, due_cents=sum(cents))
        )
        return invoice_id

    def enqueue(self, tenant_id: str, operation: Operation) -> str | None:
        with unit_of_work(self.engine) as session:
            return outbox.enqueue(session, tenant_id, operation)

    def work(self, most: int = 50) -> list[str]:
        """Perform what is due; returns how each attempt ended."""
        ended: list[str] = []
        while len(ended) < most and (result := self.runner.run_once()) is not None:
            ended.append(result)
        return ended

    def work_later(self) -> list[str]:
        """Like ``work``, after the pause of what was postponed."""
        self.offset += timedelta(minutes=10)
        return self.work()

    def receive(self) -> int:
        """Store and handle what Stripe has recorded, as a list would."""
        with unit_of_work(self.engine) as session:
            now = database_now(session)
        day = timedelta(days=1)
        listed = self.account.events_since(now - day, now + day, types=event_store.HANDLED_TYPES)
        new = [event for event in listed if event.id not in self.seen]
        self.seen |= {event.id for event in new}
        with unit_of_work(self.engine) as session:
            event_store.store(session, new, source="webhook")
        while self.events.run_once():
            pass
        return len(new)

    def of(self, invoice_id: str):
        """The invoice at Stripe; exactly one has our id."""
        row = self.rows("SELECT tenant_id FROM pushed_invoices WHERE invoice_id = :i", i=invoice_id)[0]
        listed = self.sdk.v1.invoices.list({"customer": self.customer(row["tenant_id"]), "limit": 100}).data
        (found,) = [each for each in listed if getattr(each.metadata, "tenora_id", None) == invoice_id]
        return found

    def due(self, invoice_id: str) -> int:
        return self.value("SELECT due_cents FROM test_invoices WHERE invoice_id = :i", i=invoice_id)

    def case(self, invoice_id: str):
        found = self.rows("SELECT * FROM dunning_cases WHERE invoice_id = :i", i=invoice_id)
        return found[0] if found else None

    def standing(self, tenant_id: str) -> str | None:
        found = self.rows("SELECT standing FROM payment_standings WHERE tenant_id = :t", t=tenant_id)
        return found[0]["standing"] if found else None

    def stopped(self, tenant_id: str) -> str | None:
        return self.value("SELECT stopped_reason FROM payment_queues WHERE tenant_id = :t", t=tenant_id)

    def alarms(self) -> list[str]:
        return [row["kind"] for row in self.rows("SELECT kind FROM payment_alarms ORDER BY id")]

    def notices(self, tenant_id: str) -> list[str]:
        rows = self.rows("SELECT event_type FROM notifications WHERE tenant_id = :t ORDER BY created_at", t=tenant_id)
        return [row["event_type"] for row in rows]

    def pass_days(self, days: int) -> None:
        self.offset += timedelta(days=days)

    def fail(self, kind: str, path: str, **options: Any) -> None:
        self.simulator.control("POST", "faults", {"kind": kind, "path": path, **options})

    def value(self, sql: str, **parameters: Any) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(sa.text(sql), parameters).scalar_one()

    def rows(self, sql: str, **parameters: Any):
        with self.engine.connect() as connection:
            return connection.execute(sa.text(sql), parameters).mappings().all()

    def change(self, sql: str, **parameters: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(sql), parameters)


@pytest.fixture(scope="session")
def shared_simulator(tmp_path_factory) -> Iterator[RunningSimulator]:
    with running_simulator(tmp_path_factory.mktemp("stripe") / "home") as simulator:
        yield simulator


@pytest.fixture
def stage(engine, shared_simulator) -> Iterator[PaymentStage]:
    yield PaymentStage(engine, shared_simulator)
    shared_simulator.control("DELETE", "faults")


@pytest.fixture
def own_stage(engine, tmp_path) -> Iterator[PaymentStage]:
    """With a simulator of its own, whose clock a test may move."""
    with running_simulator(tmp_path / "home") as simulator:
        yield PaymentStage(engine, simulator)
