"""Performs the operations of tenants' queues from threads of the billing worker: claim in one transaction, call Stripe
outside of any, book the outcome in another. Operations of one tenant run in order, those of several beside each other.

Fails closed: an answer that leaves open what happened stops or postpones the tenant's queue; nothing is sent twice.
"""

import threading
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
from core.errors import AppError
from core.loops import DatabaseChanges

_OUTAGES = (OperationalError, InterfaceError, PoolTimeout)
"""Postgres does not answer, or asks to try again. Other errors of it are refusals, which would repeat without end."""
_PAUSE_AFTER_ERROR_S = 2
_IDLE_S = 2  # a call that is made again after its pause; one thread looks for it, and its claim wakes the others
_OTHERS_IDLE_S = 10
_log = structlog.get_logger()


class Performer:
    """Performs one claimed operation and records how it ended."""

    def __init__(self, account: StripeAccount, queues: PaymentQueues) -> None:
        self._queues = queues
        self._charging = Charging(account, queues)
        self._refunder = Refunder(account, queues)
        self._pages = Pages(account)

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
        doubled = settings.payments_retry_first_ms * 2 ** min(claim.attempts - 1, 20)
        pause = timedelta(milliseconds=min(doubled, settings.payments_retry_longest_ms))
        return max(pause, timedelta(seconds=int(failure.retry_after_s or 0)))


def _refused(claim: Claim, failure: AppError) -> Outcome:
    """The end of an operation that Stripe refuses, and of its charge."""

    def effect(session: Session) -> None:
        row = session.get(PaymentOperation, claim.operation_id)
        assert row is not None, "claimed"
        end_charge_of(session, row, failure.message)

    return Outcome(result={"code": failure.code}, effect=effect, failure=failure.message)


class PaymentRunner:
    """Threads that claim and perform until they are stopped. ``start`` and ``stop`` are called once."""

    def __init__(self, queues: PaymentQueues, performer: Performer, changes: DatabaseChanges | None = None) -> None:
        """Without ``changes`` every thread looks every ``payments_poll_ms``."""
        self._queues = queues
        self._performer = performer
        self._stop = threading.Event()
        numbers = range(queues.settings.payments_threads)
        self._wakes = [threading.Event() if changes is None else changes.subscribe() for _ in numbers]
        idle_s = [0 if changes is None else _OTHERS_IDLE_S if number else _IDLE_S for number in numbers]
        self._threads = [
            threading.Thread(target=self._run, args=waiting, name=f"payments-{number}", daemon=True)
            for number, waiting in enumerate(zip(self._wakes, idle_s, strict=True))
        ]

    def start(self) -> None:
        """Begin to perform."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: int) -> None:
        """Claim nothing more, and wait for running operations. One that is cut off goes on when its lease ends."""
        self._stop.set()
        for wake in self._wakes:
            wake.set()
        for thread in self._threads:
            thread.join(timeout_s)

    def run_once(self) -> str | None:
        """Perform one operation, if one is due. Returns how it ended."""
        claim = self._queues.claim()
        return None if claim is None else self._performer.run(claim)

    def _run(self, wake: threading.Event, idle_s: int) -> None:
        while not self._stop.is_set():
            wake.clear()
            pause_s = self._queues.settings.payments_poll_ms / 1000
            try:
                if self.run_once() is not None:
                    continue
            except _OUTAGES as error:  # the lease ends, and the operation goes on with the same key
                _log.warning("payments wait for postgres", cause=str(getattr(error, "orig", error))[:500])
                pause_s = _PAUSE_AFTER_ERROR_S
            except Exception:  # noqa: BLE001 - the thread survives every defect; the operation keeps its lease
                _log.error("a payment operation failed by a defect", exc_info=True)
                pause_s = _PAUSE_AFTER_ERROR_S
            if not self._stop.wait(pause_s):
                wake.wait(idle_s)
