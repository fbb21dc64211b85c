"""What billing reads of Stripe's objects, as plain frozen values, so that no other module depends on the SDK.

Amounts are integer cents of the payment's currency. ``our_id`` is the id that billing wrote into the object's metadata.
Each is read from the SDK's object of the same kind, which is ``Any`` here; the contract tests read every one of them.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

import msgspec

MINIMUM_CHARGE_CENTS: Final = 50  # https://docs.stripe.com/currencies, for usd
TOP_UP_CENTS_MAX: Final = 99_999_999  # Stripe's largest charge in usd
OUR_ID: Final = "tenora_id"
"""Key in the metadata of every object that billing creates at Stripe."""


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    our_id: str | None = None


class StripeCustomer(_Object, frozen=True, kw_only=True):
    deleted: bool
    default_payment_method: str | None

    @classmethod
    def read(cls, given: Any) -> Self:
        deleted = getattr(given, "deleted", None) is True  # such an answer holds nothing but its id
        settings = None if deleted else given.invoice_settings
        return cls(
            id=given.id,
            our_id=None if deleted else our_id_of(given),
            deleted=deleted,
            default_payment_method=reference(settings.default_payment_method) if settings is not None else None,
        )


class StripePage(_Object, frozen=True, kw_only=True):
    """A Checkout session: a page of Stripe's on which the owner pays or saves a card."""

    url: str | None  # None once the session is complete or expired
    status: str  # open, complete or expired
    payment_intent: str | None
    setup_intent: str | None

    @classmethod
    def read(cls, given: Any) -> Self:
        return cls(
            id=given.id,
            our_id=our_id_of(given),
            url=given.url,
            status=given.status,
            payment_intent=reference(given.payment_intent),
            setup_intent=reference(given.setup_intent),
        )


class StripePayment(_Object, frozen=True, kw_only=True):
    """A payment intent. ``status`` is ``succeeded`` only once the money is certain."""

    status: str
    received_cents: int
    currency: str
    customer: str | None

    @classmethod
    def read(cls, given: Any) -> Self:
        return cls(
            id=given.id,
            our_id=our_id_of(given),
            status=given.status,
            received_cents=given.amount_received,
            currency=given.currency,
            customer=reference(given.customer),
        )


class StripeRefund(_Object, frozen=True, kw_only=True):
    status: str | None  # pending, requires_action, succeeded, failed or canceled
    amount_cents: int
    payment_intent: str | None

    @classmethod
    def read(cls, given: Any) -> Self:
        return cls(
            id=given.id,
            our_id=our_id_of(given),
            status=given.status,
            amount_cents=given.amount,
            payment_intent=reference(given.payment_intent),
        )


class StripeDispute(_Object, frozen=True, kw_only=True):
    status: str  # warning_needs_response, needs_response, under_review, won, lost, prevented …
    amount_cents: int
    payment_intent: str | None
    reason: str

    @classmethod
    def read(cls, given: Any) -> Self:
        return cls(
            id=given.id,
            our_id=our_id_of(given),
            status=given.status,
            amount_cents=given.amount,
            payment_intent=reference(given.payment_intent),
            reason=given.reason,
        )


class WentBack(NamedTuple):
    """What went back of one payment, as Stripe says now."""

    refunds: tuple[StripeRefund, ...] = ()
    disputes: tuple[StripeDispute, ...] = ()

    @classmethod
    def read(cls, refunds: Iterable[Any], disputes: Iterable[Any]) -> Self:
        """Both lists in Stripe's order, the newest first."""
        return cls(tuple(map(StripeRefund.read, refunds))[::-1], tuple(map(StripeDispute.read, disputes))[::-1])


class StripeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook's or a listed event's name and subject. The subject is fetched again before anything is done."""

    id: str
    type: str
    created_at: datetime
    api_version: str | None
    object_id: str | None
    object_kind: str
    customer: str | None

    @classmethod
    def read(cls, given: Any) -> Self:
        """Raises ValueError, TypeError or AttributeError for what is no event."""
        subject = given.data.object
        customer = subject.id if subject.object == "customer" else reference(getattr(subject, "customer", None))
        texts = (given.id, given.type, given.api_version, getattr(subject, "id", None), subject.object, customer)
        if any("\0" in text for text in texts if text is not None):
            raise ValueError("a text contains NUL, which Postgres cannot store")
        read = {
            "id": given.id,
            "type": given.type,
            "created_at": msgspec.convert(given.created, datetime, strict=False),
            "api_version": given.api_version,
            "object_id": getattr(subject, "id", None),
            "object_kind": subject.object,
            "customer": customer,
        }
        return msgspec.convert(read, cls)


def our_id_of(given: Any) -> str | None:
    """The id of ours in an object's metadata, if it has one."""
    metadata = getattr(given, "metadata", None)
    return None if metadata is None else getattr(metadata, OUR_ID, None)


def reference(given: Any) -> str | None:
    """The id of an object that another one names: Stripe writes the id, or the whole object if it was expanded."""
    return given if given is None or isinstance(given, str) else str(given.id)
