"""The loops of payments in the billing worker. Without a key of Stripe's the worker runs none of them, and what is
queued waits.
"""

import sqlalchemy as sa
import structlog

from billing.payments import event_store, metrics, queries
from billing.payments.event_handling import EventHandler
from billing.payments.queue import PaymentQueues
from billing.payments.runner import Performer
from billing.payments.settings import PaymentSettings
from billing.stripe.client import StripeAccount
from billing.stripe.settings import StripeSettings
from core.db import connect, unit_of_work
from core.errors import InvalidSettings
from core.loops import Loop
from core.settings import PostgresSettings

_CONNECTIONS = 4  # one for each loop beside the performers
_RETRIES_IDLE_S = 2  # a call that is made again after its pause; one loop looks for it, and its claim wakes the others
_OTHERS_IDLE_S = 10
_IDLE_S = 5
_log = structlog.get_logger()


def loops(engine: sa.Engine, stripe: StripeSettings, settings: PaymentSettings) -> list[Loop]:
    """What the billing worker repeats: calls to Stripe, each loop for one tenant at a time, and the work beside them.
    Raises InvalidSettings.
    """
    if settings.payments_lease_s <= stripe.call_s:
        raise InvalidSettings(
            f"TENORA_PAYMENTS_LEASE_S is {settings.payments_lease_s}, and one call to Stripe may take "
            f"{stripe.call_s} s (TENORA_STRIPE_CONNECT_TIMEOUT_S + TENORA_STRIPE_READ_TIMEOUT_S). Raise the lease."
        )
    if settings.control_public_url is None:
        raise InvalidSettings(
            "TENORA_CONTROL_PUBLIC_URL is not set. Set the address at which tenants reach the control plane, such "
            "as https://api.example.com: mails about unpaid invoices lead to it."
        )
    account = StripeAccount(stripe)
    queues = PaymentQueues(engine, settings)
    performer, events = Performer(account, queues), EventHandler(engine, account, settings)

    def perform() -> bool:
        return performer.run_once() is not None

    def handle_events() -> bool:
        return events.run_once() > 0

    def handle_payment_events() -> bool:
        return events.run_once(types=event_store.PAYMENT_TYPES) > 0

    def count_stopped() -> None:
        with unit_of_work(engine) as session:
            metrics.QUEUES_STOPPED.set(queries.count_stopped(session))

    where = "the simulator, no real money" if stripe.stripe_api_base else "Stripe"
    _log.info("payments go to", stripe=where, address=stripe.stripe_api_base)
    poll_s = settings.payments_poll_ms / 1000
    return [
        *(
            Loop(f"payments-{number}", perform, poll_s, _OTHERS_IDLE_S if number else _RETRIES_IDLE_S)
            for number in range(settings.payments_threads)
        ),
        Loop("stripe_events", handle_events, poll_s, _IDLE_S),
        Loop("stripe_payment_events", handle_payment_events, poll_s, _IDLE_S),
        Loop("stripe_events_listed", events.catch_up, settings.payments_catch_up_s),
        Loop("payment_queues", count_stopped, 10),
    ]


def loops_of(postgres: PostgresSettings, stripe: StripeSettings) -> list[Loop]:
    """The loops, with a few database connections of their own."""
    settings = PaymentSettings()
    connections = settings.payments_threads + _CONNECTIONS
    return loops(connect(postgres.model_copy(update={"postgres_pool_max": connections})), stripe, settings)
