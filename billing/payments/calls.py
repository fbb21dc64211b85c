"""The call that is an operation's effect at Stripe. It takes effect once, also if this process is killed at any line,
or if the answer is lost.

What the call is about (``decide``) and its idempotency key are committed before the call, and the created object's id
after it. Within the time that Stripe is trusted to know a key, the call is repeated with the same key. After that time,
or once Stripe replays a stored 500, the object is looked up by our id in its metadata; a new key is used only if it is
certain that the object does not exist.

Stripe knows no fence: it would charge again for a key that another worker has replaced, and that Stripe never saw or
has forgotten. So a call is sent only while the lease outlasts it, by the monotonic clock.
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.payments import metrics
from billing.payments.models import PaymentOperation
from billing.payments.queue import Claim, Effect, LeaseLost, PaymentQueues
from billing.stripe.errors import StripeFailure, StripeUnavailable
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


class Call:
    """The call of one claimed operation."""

    def __init__(self, queues: PaymentQueues, claim: Claim, *, call_s: int) -> None:
        """``call_s``: the longest that one call takes."""
        self._queues = queues
        self._call_s = call_s
        self.claim = claim

    @property
    def customer(self) -> str:
        """The tenant's customer at Stripe."""
        assert self.claim.customer_id is not None, "the first operation of a queue creates the customer"
        return self.claim.customer_id

    def decided(self) -> str | None:
        """What an earlier attempt has decided."""
        with unit_of_work(self._queues.engine) as session:
            return self._read(session).decided

    def decide(self, choose: Callable[[Session], str | None]) -> str | None:
        """What the call is about: chosen once, in one transaction, and the same for all attempts. None if ``choose``
        finds nothing to do. It may lock invoices, which other transactions lock before a queue.
        """
        with unit_of_work(self._queues.engine) as session:
            row = self._read(session)
            if row.decided is None:
                chosen = choose(session)
                if chosen is not None:
                    self._change(session, decided=chosen)
                return chosen
            return row.decided

    def once(self, send: Send, find: Find) -> str:
        """The id of the object that the call makes. Raises what the call raises, and LeaseLost."""
        kept_at = time.monotonic()
        row = self._begin()
        if row.object_id is not None:
            return row.object_id
        if row.look_up:
            found = find(*self.window())
            metrics.LOOK_UPS.labels("absent" if found is None else "found").inc()
            if found is not None:
                return self._store(found.id)
            kept_at = time.monotonic()
            row = self._take_new_key()
        assert row.idempotency_key is not None, "begun"
        if time.monotonic() + self._call_s >= kept_at + self._queues.settings.payments_lease_s:
            raise LeaseLost(self.claim.operation_id)
        try:
            made = send(row.idempotency_key)
        except StripeUnavailable as failure:
            if failure.replayed:  # the call ended and failed; this key will never say what it did
                with unit_of_work(self._queues.engine) as session:
                    self._change(session, look_up=True)
            raise
        return self._store(made.id)

    def start_over(self, effect: Effect | None = None) -> None:
        """Forget what was decided, after it is certain that the call had no effect, in one transaction with ``effect``.
        Raises KeysUsedUp.
        """
        self._take_new_key(effect, decided=None)

    def window(self) -> tuple[datetime, datetime]:
        """When the object may have been created. Objects on a test clock have its time, so all are read there."""
        if self.claim.test_clock is not None:
            return _EVER
        with unit_of_work(self._queues.engine) as session:
            return self.claim.waits_since, self._queues.clock(session) + timedelta(minutes=1)

    def _begin(self) -> PaymentOperation:
        """The operation with its key. A key that Stripe may have forgotten asks for a look-up."""
        with unit_of_work(self._queues.engine) as session:
            now, row = self._queues.keep(session, self.claim), self._read(session)
            if row.idempotency_key is None:
                self._change(session, idempotency_key=self._new_key(), key_number=1, key_since=now)
            elif row.object_id is None and row.key_since and now - row.key_since > self._queues.settings.key_age_max:
                self._change(session, look_up=True)
            return self._read(session)

    def _take_new_key(self, effect: Effect | None = None, **changes: Any) -> PaymentOperation:
        with unit_of_work(self._queues.engine) as session:
            if effect is not None:
                effect(session)
            now, row = self._queues.keep(session, self.claim), self._read(session)
            if row.key_number >= self._queues.settings.payments_keys_max:
                raise KeysUsedUp(f"{self.claim.operation_id}: {row.key_number} keys were used without an effect")
            key = {"idempotency_key": self._new_key(), "key_number": row.key_number + 1, "key_since": now}
            self._change(session, **key, look_up=False, **changes)
            return self._read(session)

    def _store(self, object_id: str) -> str:
        with unit_of_work(self._queues.engine) as session:
            self._change(session, object_id=object_id, look_up=False)
        return object_id

    def _change(self, session: Session, **values: Any) -> None:
        """Write for the claim, whose lease is kept. Raises LeaseLost."""
        self._queues.keep(session, self.claim)
        session.execute(
            sa.update(PaymentOperation).where(col(PaymentOperation.id) == self.claim.operation_id).values(**values)
        )

    def _read(self, session: Session) -> PaymentOperation:
        wanted = select(PaymentOperation).where(PaymentOperation.id == self.claim.operation_id)
        return session.exec(wanted.execution_options(populate_existing=True)).one()

    def _new_key(self) -> str:
        return f"{self.claim.operation_id}:{secrets.token_hex(8)}"
