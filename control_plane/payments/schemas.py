"""Wire types of the payments room. Answers are ``billing.payments.views``."""

from typing import Annotated

import msgspec

from billing.stripe.objects import TOP_UP_CENTS_MAX
from core import fields
from core.fields import about

PageUrl = Annotated[str, msgspec.Meta(min_length=8, max_length=2000, pattern=r"^https?://[!-~]+(?!\n)$")]
TopUpCents = Annotated[int, msgspec.Meta(ge=50, le=TOP_UP_CENTS_MAX)]


class NewSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Stripe leads the owner after saving a card, and after giving up."""

    success_url: Annotated[PageUrl, fields.SUCCESS_URL]
    cancel_url: Annotated[PageUrl, fields.CANCEL_URL]


class NewPortal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Stripe leads the owner back to."""

    return_url: Annotated[PageUrl, about("Where Stripe leads the owner back to.")]


class NewTopUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much credit to buy, and where Stripe leads the owner after paying, and after giving up."""

    amount_cents: Annotated[TopUpCents, about("Credit to buy, in cents (US dollars); at least 50.")]
    success_url: Annotated[PageUrl, fields.SUCCESS_URL]
    cancel_url: Annotated[PageUrl, fields.CANCEL_URL]


TestClockId = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_]+(?!\n)$")]


class NewPaymentQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A test clock of Stripe's that dates the tenant's payments, to see in seconds what dunning does in weeks."""

    test_clock: Annotated[TestClockId, fields.TEST_CLOCK]


class QueueDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do with the operation at which the queue stopped: look for it at Stripe and try again, or cancel it."""

    cancel: Annotated[bool, about("Whether to give the operation up instead of trying it again.")] = False


class EventReceived(msgspec.Struct, frozen=True, kw_only=True):
    """The event is stored. ``new`` is false if it was stored before."""

    new: bool
