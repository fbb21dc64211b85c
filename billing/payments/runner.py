"""Performs the operations of tenants' queues: claims one in a transaction, calls Stripe outside of any, books the
outcome in another. Operations of one tenant run in order, those of several beside each other.

Fails closed: an answer that leaves open what happened postpones or stops the queue. Nothing takes effect twice.
"""

import secrets
from datetime import timedelta

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session, col

from billing.payments import metrics
from billing.payments.booking import CURRENCY, end_charge_of
from billing.payments.calls import Call
from billing.payments.charging import Charging, opened
from billing.payments.models import PaymentOperation, PaymentQueue
from billing.payments.operations import (
    ChargeTopUp,
    CollectInvoice,
    CreateCustomer,
    OpenInvoicePage,
    OpenPortal,
    OpenSetupPage,
    OpenTopUpPage,
    Operation,
    Refund,
    kind_of,
)
from billing.payments.queue import Claim, LeaseLost, Outcome, PaymentQueues, QueueStops
from billing.payments.refunding import Refunder
from billing.stripe.client import StripeAccount
from billing.stripe.errors import (
    StripeAccessDenied,
    StripeFailure,
    StripeObjectNotFound,
    StripeRefused,
    StripeUnavailable,
)
from core import leases
from core.errors import AppError

_OUTAGES = (OperationalError, InterfaceError, PoolTimeout)
"""Postgres does not answer, or asks to try again. Other errors of it are refusals, which would repeat without end."""
_log = structlog.get_logger()


class Performer:
    """Performs one claimed operation and records how it ended."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues) -> None:
        self._account = account
        self._queues = queues
        self._charging = Charging(account, queues)
        self._refunder = Refunder(account, queues)

    def run_once(self) -> str | None:
        """Perform one operation, if one is due. Returns how it ended."""
        claim = self._queues.claim()
        return None if claim is None else self.run(claim)

    def run(self, claim: Claim) -> str:
        """Perform the operation. Returns how the attempt ended, as in the metric."""
        with metrics.OPERATION_SECONDS.labels(kind_of(claim.operation)).time():
            try:
                result = self._attempt(claim)
            except LeaseLost:
                result = "lost"
        metrics.OPERATIONS.labels(kind_of(claim.operation), result).inc()
        return result

    def _attempt(self, claim: Claim) -> str:
        queues = self._queues
        try:
            outcome = self._perform(claim.operation, Call(queues, claim, call_s=self._account.call_s))
            queues.finish(claim, outcome)
        except QueueStops as stops:
            queues.stop(claim, stops.kind, stops.reason)
            return "stopped"
        except (StripeUnavailable, StripeAccessDenied) as failure:
            queues.postpone(claim, failure.message, pause=self._pause(claim, failure))
            return "postponed"
        except AppError as failure:  # Stripe's refusals and inconclusive look-ups, and what the books do not accept
            if claim.operation.fails_alone and isinstance(failure, StripeRefused | StripeObjectNotFound):
                queues.finish(claim, _refused(claim, failure))
                return "failed"
            queues.stop(claim, failure.code, failure.message)
            return "stopped"
        except (LeaseLost, *_OUTAGES):
            raise
        except Exception as error:  # noqa: BLE001 - a defect would repeat whenever the lease ends
            _log.error("a payment operation failed by a defect", operation=claim.operation_id, exc_info=True)
            queues.stop(claim, "operation_failed", f"{type(error).__name__}: {error}")
            return "stopped"
        return "done" if outcome.failure is None else "failed"

    def _perform(self, operation: Operation, call: Call) -> Outcome:  # noqa: PLR0911 - one line for each operation
        match operation:
            case CreateCustomer() as create:
                return self._create_customer(call, create)
            case OpenSetupPage() as page:
                return self._open_setup(call, page)
            case OpenPortal() as page:
                return self._open_portal(call, page)
            case OpenTopUpPage() as page:
                return self._charging.open_top_up_page(call, page)
            case OpenInvoicePage() as page:
                return self._charging.open_invoice_page(call, page)
            case ChargeTopUp() as top_up:
                return self._charging.charge_top_up(call, top_up)
            case CollectInvoice() as collect:
                return self._charging.collect(call, collect)
            case Refund() as refund:
                return self._refunder.refund(call, refund)

    def _create_customer(self, call: Call, create: CreateCustomer) -> Outcome:
        """Create the tenant's customer, or find the one that a lost answer created."""
        customer_id = call.once(
            lambda key: self._account.create_customer(
                our_id=create.tenant_id, name=create.name, email=create.email, test_clock=create.test_clock, key=key
            ),
            lambda since, until: self._account.find_customer(
                our_id=create.tenant_id, since=since, until=until, test_clock=create.test_clock
            ),
        )
        at = None if create.test_clock is None else self._account.clock_time(create.test_clock)

        def keep(session: Session) -> None:
            session.execute(
                sa.update(PaymentQueue)
                .where(col(PaymentQueue.tenant_id) == create.tenant_id)
                .values(customer_id=customer_id, clock_at=at)
            )

        return Outcome(result={"customer": customer_id}, effect=keep)

    def _open_setup(self, call: Call, page: OpenSetupPage) -> Outcome:
        """Open the page that saves a card."""
        customer = call.customer
        page_id = call.once(
            lambda key: self._account.open_setup_page(
                customer,
                our_id=page.request_id,
                currency=CURRENCY,
                success_url=page.success_url,
                cancel_url=page.cancel_url,
                key=key,
            ),
            lambda since, until: self._account.find_page(
                our_id=page.request_id, customer_id=customer, since=since, until=until
            ),
        )
        return opened(self._account.page(page_id))

    def _open_portal(self, call: Call, page: OpenPortal) -> Outcome:
        """Open the portal. Its address works once and for minutes, so each attempt may open another."""
        key = f"{call.claim.operation_id}:portal:{secrets.token_hex(8)}"
        return Outcome(result={"url": self._account.portal_url(call.customer, return_url=page.return_url, key=key)})

    def _pause(self, claim: Claim, failure: StripeFailure) -> timedelta:
        settings = self._queues.settings
        pause = leases.pause(
            claim.attempts, first_ms=settings.payments_retry_first_ms, longest_ms=settings.payments_retry_longest_ms
        )
        return max(pause, timedelta(seconds=int(failure.retry_after_s or 0)))


def _refused(claim: Claim, failure: AppError) -> Outcome:
    """The end of an operation that Stripe refuses, and of its charge."""

    def effect(session: Session) -> None:
        row = session.get(PaymentOperation, claim.operation_id)
        assert row is not None, "claimed"
        end_charge_of(session, row, failure.message)

    return Outcome(result={"code": failure.code}, effect=effect, failure=failure.message)
