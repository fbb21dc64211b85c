"""What an operation at Stripe came to: its result for the queue, and the effect that is booked together with it."""

from typing import Any, Literal

import msgspec

from billing.payments.queue import Effect


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """``failure`` ends the operation as failed; the queue goes on."""

    result: dict[str, Any]
    effect: Effect | None = None
    failure: str | None = None


class QueueStops(Exception):
    """Nothing more may be sent for this tenant until an admin has looked."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


Failure = Literal["declined", "hard", "needs_owner", "no_method"]


class CollectionAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt to collect an invoice ended."""

    how: Literal["paid"] | Failure
    reason: str
    hosted_url: str | None = None
    method: str | None = None  # the card that was tried
