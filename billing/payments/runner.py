"""Performs the operations of tenants' queues: claims one in a transaction, calls Stripe outside of any, books the
outcome in another. Operations of one tenant run in order, those of several beside each other.

Fails closed: an answer that leaves open what happened stops or postpones the tenant's queue; nothing is sent twice.
"""

from datetime import timedelta

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session

from billing.payments import metrics
from billing.payments.calls import Call
from billing.payments.charging import Charging
from billing.payments.models import PaymentOperation
from billing.payments.operations import (
    ChargeTopUp,
    CollectInvoice,
    CreateCustomer,
    OpenInvoicePage,
    OpenPortal,
    OpenSetupPage,
    OpenTopUpPage,
    Refund,
    kind_of,
)
from billing.payments.pages import Pages
from billing.payments.queue import Claim, LeaseLost, Outcome, PaymentQueues, QueueStops
from billing.payments.refunding import Refunder
from billing.payments.settlement import end_charge_of
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
        self._queues = queues
        self._charging = Charging(account, queues)
        self._refunder = Refunder(account, queues)
        self._pages = Pages(account)

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
            outcome = self._perform(claim, Call(queues, claim))
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

    def _perform(self, claim: Claim, call: Call) -> Outcome:  # noqa: PLR0911 - one line for each operation
        match claim.operation:
            case CreateCustomer() as create:
                return self._pages.create_customer(call, create)
            case OpenSetupPage() as page:
                return self._pages.open_setup(claim, call, page)
            case OpenPortal() as page:
                return self._pages.open_portal(claim, page)
            case OpenTopUpPage() as page:
                return self._charging.open_top_up_page(claim, call, page)
            case OpenInvoicePage() as page:
                return self._charging.open_invoice_page(claim, call, page)
            case ChargeTopUp() as top_up:
                return self._charging.charge_top_up(claim, call, top_up)
            case CollectInvoice() as collect:
                return self._charging.collect(claim, call, collect)
            case Refund() as refund:
                return self._refunder.refund(claim, call, refund)

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
