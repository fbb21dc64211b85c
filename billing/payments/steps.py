"""One call to Stripe that has its effect once, also if this process is killed at any line, or the answer is lost.

The idempotency key is committed before the call, and the created object's id after it. Within the time that Stripe is
trusted to know a key, the call is repeated with the same key. After that time, or once Stripe replays a stored 500,
the object is looked up; a new key is used only if it is certain that the object does not exist.
"""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sqlmodel import Session

from billing.payments import metrics
from billing.payments.models import PaymentStep
from billing.payments.queue import Claim, PaymentQueues
from billing.stripe_errors import StripeFailure, StripeUnavailable
from core.db import unit_of_work

_EVER = (datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))


class _Made(Protocol):
    @property
    def id(self) -> str: ...


Send = Callable[[str], _Made]
"""Makes the call with an idempotency key."""
Find = Callable[[datetime, datetime], _Made | None]
"""Looks for what the call made between two instants. Raises StripeLookupInconclusive unless the answer is certain."""


class KeysUsedUp(StripeFailure):
    """A call failed under as many idempotency keys as are allowed."""

    default_code = "stripe_keys_used_up"


class Steps:
    """The steps of one claimed operation."""

    def __init__(self, queues: PaymentQueues, claim: Claim) -> None:
        self._queues = queues
        self._claim = claim

    def once(self, name: str, send: Send, find: Find) -> str:
        """The id of the object that the call makes. Raises what the call raises, and LeaseLost."""
        step = self._begin(name)
        if step.object_id is not None:
            return step.object_id
        if step.look_up:
            since, until = self._window(step)
            found = find(since, until)
            metrics.LOOK_UPS.labels("absent" if found is None else "found").inc()
            if found is not None:
                return self._end(name, found.id)
            step = self._take_new_key(name)
        try:
            made = send(step.idempotency_key)
        except StripeUnavailable as failure:
            if failure.replayed:  # the call ended and failed; this key will never say what it did
                self._ask_for_look_up(name)
            raise
        return self._end(name, made.id)

    def has_begun(self, name: str) -> bool:
        """Whether the call may have been made."""
        with unit_of_work(self._queues.engine) as session:
            return self._read(session, name) is not None

    def known(self, name: str) -> str | None:
        """What an earlier attempt, or an admin, has decided."""
        with unit_of_work(self._queues.engine) as session:
            step = self._read(session, name)
        return None if step is None else step.object_id

    def decide(self, name: str, choose: Callable[[], str]) -> str:
        """A choice that all attempts of the operation share. It calls nothing that has an effect."""
        decided = self.known(name)
        if decided is not None:
            return decided
        chosen = choose()
        self._begin(name)
        return self._end(name, chosen)

    def _begin(self, name: str) -> PaymentStep:
        """The step with its key. A key that Stripe may have forgotten asks for a look-up."""
        with unit_of_work(self._queues.engine) as session:
            now = self._queues.keep(session, self._claim)
            step = self._read(session, name)
            if step is None:
                step = PaymentStep(
                    operation_id=self._claim.operation_id,
                    name=name,
                    idempotency_key=self._new_key(name),
                    key_since=now,
                    started_at=now,
                )
                session.add(step)
            elif step.object_id is None and now - step.key_since > self._queues.settings.key_age_max:
                step.look_up = True
                session.add(step)
            return step

    def _take_new_key(self, name: str) -> PaymentStep:
        with unit_of_work(self._queues.engine) as session:
            now = self._queues.keep(session, self._claim)
            step = self._read(session, name)
            assert step is not None
            if step.generation >= self._queues.settings.payments_keys_max:
                raise KeysUsedUp(f"{name}: {step.generation} keys were used and the object does not exist")
            step.generation += 1
            step.idempotency_key, step.key_since, step.look_up = self._new_key(name), now, False
            session.add(step)
            return step

    def _end(self, name: str, object_id: str) -> str:
        with unit_of_work(self._queues.engine) as session:
            now = self._queues.keep(session, self._claim)
            step = self._read(session, name)
            assert step is not None
            step.object_id, step.finished_at, step.look_up = object_id, now, False
            session.add(step)
        return object_id

    def _ask_for_look_up(self, name: str) -> None:
        with unit_of_work(self._queues.engine) as session:
            self._queues.keep(session, self._claim)
            step = self._read(session, name)
            assert step is not None
            step.look_up = True
            session.add(step)

    def _read(self, session: Session, name: str) -> PaymentStep | None:
        return session.get(PaymentStep, (self._claim.operation_id, name))

    def _new_key(self, name: str) -> str:
        return f"{self._claim.operation_id}:{name[:100]}:{secrets.token_hex(8)}"

    def _window(self, step: PaymentStep) -> tuple[datetime, datetime]:
        """When the object may have been created. Objects on a test clock have its time, so all are read there."""
        if self._claim.test_clock is not None:
            return _EVER
        with unit_of_work(self._queues.engine) as session:
            return step.started_at, self._queues.clock(session) + timedelta(minutes=1)
