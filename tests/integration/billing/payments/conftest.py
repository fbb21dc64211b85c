"""A stage for payments: the real ledger and invoices, the simulator as a process, and a clock that tests move."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Session

from billing import ledger
from billing.invoices.queries import read_invoice
from billing.invoices.views import CreditDestination
from billing.invoicing import credit_notes
from billing.ledger import AccountRef
from billing.payments import event_store, outbox
from billing.payments.booking import record_manual_payment
from billing.payments.dunning import DunningRounds
from billing.payments.event_handling import EventHandler
from billing.payments.operations import Operation
from billing.payments.queue import PaymentQueues
from billing.payments.runner import Performer
from billing.payments.settings import PaymentSettings
from billing.stripe.client import StripeAccount
from core.db import database_now, unit_of_work
from core.ids import new_id
from core.money import NANOS_PER_CENT
from tests.fixtures import small_invoices
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator
from tests.integration.billing.stripe.conftest import settings_of

PUBLIC_URL = "https://api.example.com"


class PaymentStage:
    """``since`` is when the stage began: events before it are another test's, which shared the simulator."""

    def __init__(self, engine: sa.Engine, simulator: RunningSimulator, **changes: Any) -> None:
        self.engine = engine
        self.simulator = simulator
        self.offset = timedelta()
        quick = {"payments_retry_first_ms": 10, "payments_retry_longest_ms": 50}
        self.settings = PaymentSettings(control_public_url=PUBLIC_URL, **quick, **changes)
        self.account = StripeAccount(settings_of(simulator, stripe_read_timeout_s=3))
        self.sdk = simulator.sdk()
        self.queues = PaymentQueues(engine, self.settings, self.clock)
        self.performer = Performer(self.account, self.queues)
        self.events = EventHandler(engine, self.account, self.settings, self.clock)
        self.dunning = DunningRounds(engine, self.settings, self.clock)
        self.seen: set[str] = set()
        with unit_of_work(engine) as session:
            self.since = database_now(session) - timedelta(seconds=1)  # Stripe's times are whole seconds

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
        """A final invoice of the tenant, whose collection is queued."""
        with unit_of_work(self.engine) as session:
            return small_invoices.issue(session, tenant_id, *cents).id

    def enqueue(self, tenant_id: str, operation: Operation) -> str | None:
        with unit_of_work(self.engine) as session:
            return outbox.enqueue(session, tenant_id, operation)

    def work(self, most: int = 50) -> list[str]:
        """Perform what is due; returns how each attempt ended."""
        ended: list[str] = []
        while len(ended) < most and (result := self.performer.run_once()) is not None:
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
        listed = self.account.events_since(self.since, now + timedelta(days=1), types=event_store.HANDLED_TYPES)
        new = [event for event in listed if event.id not in self.seen]
        self.seen |= {event.id for event in new}
        with unit_of_work(self.engine) as session:
            event_store.store(session, new, source="webhook")
        while self.events.run_once():
            pass
        return len(new)

    def intents(self, tenant_id: str):
        """The payment intents at Stripe, the oldest first."""
        return self.sdk.v1.payment_intents.list({"customer": self.customer(tenant_id), "limit": 100}).data[::-1]

    def charged(self, tenant_id: str) -> list[int]:
        """What the cards were charged, the oldest first, without what was refunded."""
        charges = self.sdk.v1.charges.list({"customer": self.customer(tenant_id), "limit": 100}).data
        return [each.amount - each.amount_refunded for each in reversed(charges) if each.paid]

    def attempts(self, invoice_id: str) -> int:
        return self.value("SELECT count(*) FROM payment_charges WHERE invoice_id = :i AND NOT on_page", i=invoice_id)

    def read(self, invoice_id: str):
        with unit_of_work(self.engine) as session:
            return read_invoice(session, invoice_id)

    def due(self, invoice_id: str) -> int:
        return self.read(invoice_id).amount_due_cents

    def pay_by_hand(self, invoice_id: str, cents: int, reference: str | None = None) -> None:
        with unit_of_work(self.engine) as session:
            record_manual_payment(
                session, invoice_id=invoice_id, amount_cents=cents, reference=reference or new_id("tr"), actor="tests"
            )

    def credit(self, invoice_id: str, cents: int, *, to: CreditDestination = "refund") -> None:
        with unit_of_work(self.engine) as session:
            credit_notes.issue_credit_note(session, invoice_id=invoice_id, to=to, reason="Outage", amount_cents=cents)

    def balance(self, kind: str, tenant_id: str | None = None) -> int:
        """Of an account, in cents."""
        with unit_of_work(self.engine) as session:
            return ledger.balance_nanos(session, AccountRef(kind, tenant_id)) // NANOS_PER_CENT

    def bought(self, tenant_id: str) -> list[int]:
        """The cents of credit that payments bought."""
        rows = self.rows(
            "SELECT amount_nanos / 10000000 AS cents FROM credit_lots WHERE tenant_id = :t ORDER BY reference",
            t=tenant_id,
        )
        return [row["cents"] for row in rows]

    def open_page(self, invoice_id: str) -> dict[str, Any]:
        """The page on which the owner pays, as the address of the unpaid invoice opens it."""
        with unit_of_work(self.engine) as session:
            tenant_id = read_invoice(session, invoice_id).tenant_id
            operation = outbox.page_of_invoice(session, tenant_id, invoice_id)
        self.work()
        return self.value("SELECT result FROM payment_operations WHERE id = :i", i=operation)

    def pay_page(self, page: str, card: str = "4242424242424242") -> None:
        """The owner enters a card on a page."""
        self.simulator.control("POST", f"checkout/{page}", {"card": card})

    def case(self, invoice_id: str):
        found = self.rows("SELECT * FROM dunning_cases WHERE invoice_id = :i", i=invoice_id)
        return found[0] if found else None

    def is_dunned(self, invoice_id: str) -> bool:
        return self.case(invoice_id)["ended_at"] is None

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


@pytest.fixture
def stage(engine, shared_simulator) -> Iterator[PaymentStage]:
    yield PaymentStage(engine, shared_simulator)
    shared_simulator.control("DELETE", "faults")


@pytest.fixture
def own_stage(engine, tmp_path) -> Iterator[PaymentStage]:
    """With a simulator of its own, whose clock a test may move."""
    with running_simulator(tmp_path / "home") as simulator:
        yield PaymentStage(engine, simulator)
