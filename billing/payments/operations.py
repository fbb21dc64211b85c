"""What billing asks of Stripe: one frozen value for each kind of operation, as it is stored in a tenant's queue.

A stored operation never changes, so that every attempt sends the same parameters under the same idempotency keys.
``dedupe_key`` names the intention: a second operation of a tenant with the same key is not queued.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from billing.payments.settings import DESCRIPTION_LENGTH_MAX, TOP_UP_CENTS_MAX
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
    """A page of Stripe's on which the owner buys credit. ``request_id`` is the id of the top-up."""

    amount_cents: ChargedCents
    success_url: Url
    cancel_url: Url


class ChargeTopUp(_Operation, frozen=True, kw_only=True):
    """Buy credit with the saved card, without the owner."""

    top_up_id: str
    amount_cents: ChargedCents

    @property
    def dedupe_key(self) -> str:
        return self.dedupe_key_of(self.top_up_id)

    @staticmethod
    def dedupe_key_of(top_up_id: str) -> str:
        return f"top_up:{top_up_id}"

    @property
    def fails_alone(self) -> bool:
        return True


class PushedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line at Stripe. ``id`` is unique within the invoice and goes into the line's metadata."""

    id: str
    description: Text
    amount_cents: int


class CarriedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The due amount of an earlier invoice that is collected with this one."""

    invoice_id: str
    amount_cents: int


class PushInvoice(_Operation, frozen=True, kw_only=True):
    """Collect a finalized invoice: the lines sum to ``due_cents``, what the tenant owes for it. ``carried`` are earlier
    invoices under the minimum charge; the outbox fills them in, and Stripe's total is both together.
    """

    invoice_id: str
    number: Text
    lines: tuple[PushedLine, ...]
    due_cents: int
    carried: tuple[CarriedPart, ...] = ()

    def __post_init__(self) -> None:
        assert sum(line.amount_cents for line in self.lines) == self.due_cents, "lines sum to what is due"
        assert self.due_cents >= 0, "an invoice that owes the tenant is not pushed"
        assert len({line.id for line in self.lines}) == len(self.lines), "each line once"

    @property
    def dedupe_key(self) -> str:
        return f"invoice:{self.invoice_id}"

    @property
    def total_cents(self) -> int:
        """What Stripe has to collect."""
        return self.due_cents + sum(part.amount_cents for part in self.carried)

    @property
    def sent_lines(self) -> tuple[PushedLine, ...]:
        """The lines at Stripe with the carried invoices; the outbox has made them few enough."""
        carried = tuple(
            PushedLine(
                id=f"carried:{part.invoice_id}",
                description=f"Carried over from invoice {part.invoice_id}",
                amount_cents=part.amount_cents,
            )
            for part in self.carried
        )
        return (*self.lines, *carried)


class PayInvoice(_Operation, frozen=True, kw_only=True):
    """Attempt the payment of a pushed invoice with the saved card. ``attempt`` is unique for the invoice."""

    invoice_id: str
    attempt: int

    @property
    def dedupe_key(self) -> str:
        return f"pay:{self.invoice_id}:{self.attempt}"


class PushCreditNote(_Operation, frozen=True, kw_only=True):
    """Credit part of a pushed invoice: reduce what is due, or record what went to the tenant's balance with us, or
    refund the money that was paid at Stripe.
    """

    note_id: str
    invoice_id: str
    amount_cents: Cents
    memo: Text
    to: Literal["amount_due", "balance", "refund"]

    @property
    def dedupe_key(self) -> str:
        return f"note:{self.note_id}"


class DeductPayment(_Operation, frozen=True, kw_only=True):
    """Deduct from a pushed invoice what was paid of it in another way: by hand, from credit or from the balance."""

    payment_id: str
    invoice_id: str
    amount_cents: Cents
    memo: Text

    @property
    def dedupe_key(self) -> str:
        return f"deduct:{self.payment_id}"


class RefundTopUp(_Operation, frozen=True, kw_only=True):
    """Return the money of a top-up whose credit was taken out of the ledger before."""

    refund_id: str
    payment_intent: str
    amount_cents: Cents

    @property
    def dedupe_key(self) -> str:
        return f"refund:{self.refund_id}"


class EndInvoice(_Operation, frozen=True, kw_only=True):
    """End the collection of a pushed invoice: it was voided, written off, or paid elsewhere."""

    invoice_id: str
    how: Literal["void", "uncollectible", "paid_elsewhere"]

    @property
    def dedupe_key(self) -> str:
        return f"{self.how}:{self.invoice_id}"


Operation = (
    CreateCustomer
    | OpenSetupPage
    | OpenPortal
    | OpenTopUpPage
    | ChargeTopUp
    | PushInvoice
    | PayInvoice
    | PushCreditNote
    | DeductPayment
    | RefundTopUp
    | EndInvoice
)


def top_up_of(operation: Operation) -> str | None:
    """The id of the top-up that the operation pays; None for any other operation."""
    match operation:
        case OpenTopUpPage():
            return operation.request_id
        case ChargeTopUp():
            return operation.top_up_id
    return None


def top_up_of_stored(kind: str, content: Mapping[str, Any]) -> str | None:
    """Like ``top_up_of``, of an operation as it is stored, also of one that cannot be read."""
    name = {"open_top_up_page": "request_id", "charge_top_up": "top_up_id"}.get(kind)
    return None if name is None else content.get(name)


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


def largest_lines(lines: Sequence[PushedLine], most: int) -> tuple[PushedLine, ...]:
    """The lines if they are few enough; otherwise the largest, and one line for all others. The sum stays the same."""
    shown = [line for line in lines if line.amount_cents != 0]
    if len(shown) <= most:
        return tuple(shown)
    order = sorted(range(len(shown)), key=lambda position: (-abs(shown[position].amount_cents), position))
    kept = set(order[: most - 1])
    rest = sum(line.amount_cents for position, line in enumerate(shown) if position not in kept)
    other = PushedLine(
        id="other_usage",
        description=f"Other usage: {len(shown) - len(kept)} lines, which the invoice's CSV lists",
        amount_cents=rest,
    )
    return (*(line for position, line in enumerate(shown) if position in kept), other)
