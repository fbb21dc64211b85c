"""Payments in the billing worker: the threads that call Stripe, and the jobs beside them. Without a key of Stripe's
the worker starts none of them, and what is queued waits.
"""

from datetime import timedelta

import sqlalchemy as sa
import structlog

from billing.payments import event_store, metrics, queries
from billing.payments.dunning import DunningRounds
from billing.payments.event_handling import EventHandler
from billing.payments.queue import PaymentQueues
from billing.payments.runner import PaymentRunner, Performer
from billing.payments.settings import PaymentSettings
from billing.stripe.client import StripeAccount
from billing.stripe.settings import StripeSettings
from core.db import connect, unit_of_work
from core.errors import InvalidSettings
from core.loops import DatabaseChanges, Loop
from core.settings import PostgresSettings

_CONNECTIONS = 5  # one for each job
_DUNNING_EVERY_S = 1
_IDLE_S = 5
_log = structlog.get_logger()


class Payments:
    """What the billing worker runs. ``jobs`` are for its job threads; ``runner`` has threads of its own."""

    def __init__(
        self, engine: sa.Engine, stripe: StripeSettings, settings: PaymentSettings, changes: DatabaseChanges
    ) -> None:
        call_s = stripe.stripe_connect_timeout_s + stripe.stripe_read_timeout_s
        if timedelta(seconds=settings.payments_lease_s) <= timedelta(seconds=call_s):
            raise InvalidSettings(
                f"TENORA_PAYMENTS_LEASE_S is {settings.payments_lease_s}, and one call to Stripe may take {call_s} s "
                "(TENORA_STRIPE_CONNECT_TIMEOUT_S + TENORA_STRIPE_READ_TIMEOUT_S). Raise the lease."
            )
        if settings.control_public_url is None:
            raise InvalidSettings(
                "TENORA_CONTROL_PUBLIC_URL is not set. Set the address at which tenants reach the control plane, such "
                "as https://api.example.com: mails about unpaid invoices lead to it."
            )
        account = StripeAccount(stripe)
        self._engine = engine
        queues = PaymentQueues(engine, settings)
        self.runner = PaymentRunner(queues, Performer(account, queues), changes)
        self._events = EventHandler(engine, account, settings)
        poll_s = settings.payments_poll_ms / 1000
        self.jobs = [
            Loop("stripe_events", self._handle_events, poll_s, _IDLE_S),
            Loop("stripe_payment_events", self._handle_payment_events, poll_s, _IDLE_S),
            Loop("stripe_events_listed", self._catch_up, settings.payments_catch_up_s),
            Loop("dunning", DunningRounds(engine, settings).run_once, _DUNNING_EVERY_S, _IDLE_S),
            Loop("payment_queues", self._count_stopped, 10),
        ]
        where = "the simulator, no real money" if stripe.stripe_api_base else "Stripe"
        _log.info("payments go to", stripe=where, address=stripe.stripe_api_base)

    def _handle_events(self) -> None:
        while self._events.run_once():
            pass

    def _handle_payment_events(self) -> None:
        while self._events.run_once(types=event_store.PAYMENT_TYPES):
            pass

    def _catch_up(self) -> None:
        self._events.catch_up()

    def _count_stopped(self) -> None:
        with unit_of_work(self._engine) as session:
            metrics.QUEUES_STOPPED.set(queries.count_stopped(session))


def payments_of(postgres: PostgresSettings, stripe: StripeSettings, changes: DatabaseChanges) -> Payments:
    """Payments with a few database connections of their own."""
    settings = PaymentSettings()
    connections = settings.payments_threads + _CONNECTIONS
    engine = connect(postgres.model_copy(update={"postgres_pool_max": connections}))
    return Payments(engine, stripe, settings, changes)
