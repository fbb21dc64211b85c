"""Handles stored events of Stripe: fetches the object that an event names, and applies what the object says now.

So events may come twice, late and in any order: each effect is booked once, and an older event cannot undo a newer one.
The only change that it makes at Stripe is the customer's default card.
"""

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog
from sqlalchemy import Engine
from sqlmodel import Session, select

from billing.payments import dunning, event_store
from billing.payments.alarms import raise_alarm
from billing.payments.booking import book_payment, leave_page, tenant_of
from billing.payments.models import PaymentQueue, StripeEventRow
from billing.payments.returned_payments import book_returns
from billing.payments.settings import PaymentSettings
from billing.stripe.client import API_VERSION, StripeAccount
from billing.stripe.errors import StripeObjectNotFound
from billing.stripe.objects import StripeEvent
from core.db import DatabaseClock, database_now, unit_of_work
from core.errors import AppError, Conflict

Apply = Callable[[Session], str | None]
_log = structlog.get_logger()


class EventHandler:
    """The worker's look at stored events, and at the list of events that Stripe keeps."""

    def __init__(
        self,
        engine: Engine,
        account: StripeAccount,
        settings: PaymentSettings,
        clock: DatabaseClock = database_now,
    ) -> None:
        self._engine = engine
        self._account = account
        self._settings = settings
        self._clock = clock

    def run_once(self, *, types: Sequence[str] | None = None) -> int:
        """Handle the events that are due, of all types or of these. Returns their number. One that fails stops no
        other.

        Events of one type about one object are handled together: the object is read after all of them were stored.
        """
        with unit_of_work(self._engine) as session:
            most = self._settings.payments_events_batch_max
            rows = event_store.claim(session, most, database_now(session), types=types)
        same: dict[tuple[str | None, ...], list[StripeEventRow]] = {}
        for row in rows:
            about = (row.type, row.object_kind, row.object_id, row.customer, row.api_version)
            same.setdefault(about, []).append(row)
        for events in same.values():
            try:
                apply = self._read(events[0])
                with unit_of_work(self._engine) as session:
                    event_store.finish(session, [each.id for each in events], apply)
            except Exception as error:  # noqa: BLE001 - whatever it is, the event is tried again, and ends as an alarm
                self._postpone(events, error)
        return len(rows)

    def _postpone(self, events: list[StripeEventRow], error: Exception) -> None:
        reason = error.message if isinstance(error, AppError) else type(error).__name__
        attempts_max = self._settings.payments_event_attempts_max
        for row in events:
            _log.warning("a stripe event was not handled; trying again", event_id=row.id, exc_info=error)
            with unit_of_work(self._engine) as session:
                event_store.postpone(session, row.id, reason, attempts_max=attempts_max)

    def catch_up(self) -> int:
        """List what Stripe has recorded since the last list, and store what no webhook brought."""
        with unit_of_work(self._engine) as session:
            last, until = event_store.listed_until(session), self._clock(session)

        def listed(since: datetime, to: datetime) -> list[StripeEvent]:
            return self._account.events_since(since, to, types=event_store.HANDLED_TYPES)

        found = event_store.list_since(listed, until, last)
        with unit_of_work(self._engine) as session:
            return event_store.store_listed(session, found, until)

    def _read(self, row: StripeEventRow) -> Apply:
        """Fetch what the event is about. Returns the effect."""
        if row.type not in event_store.HANDLED_TYPES:
            return lambda _session: "this type has no effect"
        assert row.object_id is not None, "every handled type is about an object with an id"
        try:
            apply = self._effect_of(row, row.object_id)
        except StripeObjectNotFound as gone:
            apply = _no_effect(gone.message)
        return _with_version_alarm(row, apply) if _is_newer(row.api_version) else apply

    def _effect_of(self, row: StripeEventRow, object_id: str) -> Apply:  # noqa: PLR0911 - one for each kind of object
        account = self._account
        match row.object_kind:
            case "payment_intent":
                payment = account.payment(object_id)
                return lambda session: book_payment(session, payment)
            case "checkout.session":
                return self._page(row, object_id)
            case "setup_intent":
                return self._card(row.customer, saved=account.card_of_setup(object_id) is not None)
            case "customer" if row.type == "customer.deleted":
                return lambda session: _customer_deleted(session, row)
            case "payment_method" | "customer":
                return self._card(row.customer, saved=False)
            case "refund":
                return self._returns(account.refund_of_id(object_id).payment_intent)
            case "dispute":
                return self._returns(account.dispute(object_id).payment_intent)
            case "test_helpers.test_clock":
                return _clock_moved(object_id, account.clock_time(object_id))
        return _no_effect(f"an event of this type about a {row.object_kind} is not known")

    def _returns(self, payment_intent: str | None) -> Apply:
        """Everything that went back of the payment. Its own event may come later: it is booked first."""
        if payment_intent is None:
            return _no_effect("it is about no payment intent")
        payment, found = self._account.payment(payment_intent), self._account.went_back(payment_intent)

        def apply(session: Session) -> str | None:
            book_payment(session, payment)
            note = book_returns(session, payment_intent, found)
            if note is not None and tenant_of(session, payment.customer) is not None:
                raise Conflict(f"{payment_intent} of our customer {payment.customer} is not booked yet.")
            return note

        return apply

    def _page(self, row: StripeEventRow, page_id: str) -> Apply:
        page = self._account.page(page_id)
        if page.setup_intent is not None:
            return self._card(row.customer, saved=self._account.card_of_setup(page.setup_intent) is not None)
        payment = None if page.payment_intent is None else self._account.payment(page.payment_intent)
        is_unpaid = payment is None or payment.status in ("requires_payment_method", "canceled")
        if is_unpaid and page.status != "open":
            return lambda session: leave_page(session, page, row.customer)
        if payment is None:
            return _no_effect("the page took no payment")
        return lambda session: book_payment(session, payment)

    def _card(self, customer_id: str | None, *, saved: bool) -> Apply:
        """Open invoices are attempted with a card that was not tried. A card that was ``saved`` on a page becomes the
        default: the newest, in whatever order events come.
        """
        with unit_of_work(self._engine) as session:
            tenant_id = tenant_of(session, customer_id)
        if tenant_id is None or customer_id is None:
            return _no_effect("the customer is none of ours")
        customer = self._account.customer(customer_id)
        if customer.deleted:
            return _no_effect("the customer was deleted")
        card = customer.default_payment_method
        if saved or card is None:
            newest = self._account.newest_card(customer_id)
            if newest is not None and newest != card:
                # A value that is set twice is set once, so a lost answer needs no look-up.
                key = f"default:{customer_id}:{secrets.token_hex(8)}"
                self._account.set_default_card(customer_id, newest, key=key)
                card = newest
        if card is None:
            return _no_effect("there is no card")
        chosen = card

        def apply(session: Session) -> None:
            dunning.method_changed(session, tenant_id, chosen, self._clock)

        return apply


def _customer_deleted(session: Session, row: StripeEventRow) -> str | None:
    tenant_id = tenant_of(session, row.customer)
    if tenant_id is None:
        return "the customer is none of ours"
    raise_alarm(
        session,
        kind="customer_deleted",
        tenant_id=tenant_id,
        message=f"{row.customer} was deleted at Stripe. The tenant's payments stop at the next operation.",
        dedupe_key=f"customer_deleted:{row.customer}",
    )
    return None


def _with_version_alarm(row: StripeEventRow, apply: Apply) -> Apply:
    """The effect is the same, because the object was fetched in the version that Tenora knows."""

    def applied(session: Session) -> str | None:
        raise_alarm(
            session,
            kind="event_version",
            tenant_id=None,
            message=f"Stripe sends events of API version {row.api_version}, and Tenora knows {API_VERSION}. They are "
            "handled, but their types may differ. Set the endpoint's version at Stripe, or update Tenora.",
            dedupe_key=f"event_version:{row.api_version}",
        )
        return apply(session)

    return applied


def _is_newer(version: str | None) -> bool:
    """Versions begin with a date, such as 2026-10-28.endive."""
    return version is not None and version[:10] > API_VERSION[:10]


def _clock_moved(test_clock: str, at: datetime) -> Apply:
    def apply(session: Session) -> str | None:
        queues = session.exec(select(PaymentQueue).where(PaymentQueue.test_clock == test_clock).with_for_update()).all()
        for queue in queues:
            queue.clock_at = max(at, queue.clock_at or at)
            session.add(queue)
        return None if queues else "no tenant is on this clock"

    return apply


def _no_effect(reason: str) -> Apply:
    return lambda _session: reason
