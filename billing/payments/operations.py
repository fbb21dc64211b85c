"""What billing asks of Stripe: one frozen value for each kind of operation, as it is stored in a tenant's queue.

Each has one effect there. ``dedupe_key`` names the intention: a second operation of a tenant with the same key is not
queued. What an invoice is charged is decided when its turn comes (``charging``), and is no part of the operation.
"""

from typing import Annotated, Any, Final

import msgspec

from billing.payments.settings import DESCRIPTION_LENGTH_MAX
from billing.stripe.objects import TOP_UP_CENTS_MAX
from core.errors import InvalidRequest

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=DESCRIPTION_LENGTH_MAX)]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s]{1,2000}$")]
_BOUGHT: Final = "stripe:"
Cents = Annotated[int, msgspec.Meta(ge=1)]  # of the books, which bound it
ChargedCents = Annotated[int, msgspec.Meta(ge=1, le=TOP_UP_CENTS_MAX)]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class _Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=_snake):
    """``fails_alone``: a refusal ends this operation and lets the queue go on, because no later one depends on it."""

    @property
    def fails_alone(self) -> bool:
        return False


class CreateCustomer(_Operation, frozen=True, kw_only=True):
    """Create the tenant's customer at Stripe: the first operation of each queue."""

    tenant_id: str
    name: Text
    email: str | None = None
    test_clock: str | None = None

    @property
    def dedupe_key(self) -> str:
        return "customer"


class _Page(_Operation, frozen=True, kw_only=True):
    request_id: str

    @property
    def dedupe_key(self) -> str:
        return f"page:{self.request_id}"

    @property
    def fails_alone(self) -> bool:
        return True


class OpenSetupPage(_Page, frozen=True, kw_only=True):
    """A page of Stripe's on which the owner saves a card."""

    success_url: Url
    cancel_url: Url


class OpenPortal(_Page, frozen=True, kw_only=True):
    """A page of Stripe's on which the owner manages cards."""

    return_url: Url


class OpenTopUpPage(_Page, frozen=True, kw_only=True):
    """A page of Stripe's on which the owner buys credit. ``request_id`` is the id of the charge."""

    amount_cents: ChargedCents
    success_url: Url
    cancel_url: Url


class OpenInvoicePage(_Page, frozen=True, kw_only=True):
    """A page of Stripe's on which the owner pays what is due of an invoice when the page is opened."""

    invoice_id: str


class ChargeTopUp(_Operation, frozen=True, kw_only=True):
    """Buy credit with the saved card, without the owner. ``charge_id`` is the charge's."""

    charge_id: str
    amount_cents: ChargedCents

    @property
    def dedupe_key(self) -> str:
        return f"top_up:{self.charge_id}"

    @property
    def fails_alone(self) -> bool:
        return True


class CollectInvoice(_Operation, frozen=True, kw_only=True):
    """Attempt the payment of what is due of an invoice with the saved card. ``attempt`` is unique for the invoice."""

    invoice_id: str
    attempt: int = 1

    @property
    def dedupe_key(self) -> str:
        return f"collect:{self.invoice_id}:{self.attempt}"


class Refund(_Operation, frozen=True, kw_only=True):
    """Return money that the books have returned before: of the payments of an invoice, by a credit note, or of the
    payment that bought credit. ``part`` counts the payments from which it comes.
    """

    refund_id: str
    amount_cents: Cents
    invoice_id: str | None = None
    payment_intent: str | None = None
    part: int = 1

    def __post_init__(self) -> None:
        assert (self.invoice_id is None) != (self.payment_intent is None), "of an invoice, or of one payment"

    @property
    def dedupe_key(self) -> str:
        return f"refund:{self.refund_id}:{self.part}"


Operation = (
    CreateCustomer
    | OpenSetupPage
    | OpenPortal
    | OpenTopUpPage
    | OpenInvoicePage
    | ChargeTopUp
    | CollectInvoice
    | Refund
)


def top_up_reference(payment_intent: str) -> str:
    """The reference of the credit that a payment bought."""
    return f"{_BOUGHT}{payment_intent}"


def bought_with(reference: str) -> str | None:
    """The payment intent that bought credit with this reference; None if it was granted in another way."""
    return reference.removeprefix(_BOUGHT) if reference.startswith(_BOUGHT) else None


def decoded(content: object) -> Operation:
    """The stored operation, of Postgres' JSON. Raises InvalidRequest for what is none."""
    try:
        operation: Operation = msgspec.convert(content, Operation)
    except (msgspec.ValidationError, AssertionError) as error:
        raise InvalidRequest(f"the payment operation cannot be read: {error}") from error
    return operation


def storable(operation: Operation) -> Any:
    """The operation as Postgres' JSON. Raises InvalidRequest for one that could not be read again, so that its cause is
    refused, and the tenant's queue goes on.
    """
    content = msgspec.json.decode(msgspec.json.encode(operation))
    decoded(content)
    return content


def kind_of(operation: Operation) -> str:
    """The operation's kind as it is stored."""
    return _snake(type(operation).__name__)
