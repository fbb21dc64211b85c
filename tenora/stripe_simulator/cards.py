"""Stripe's documented test cards and what each does (https://docs.stripe.com/testing). No other number is accepted."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class TestCard:
    """How a card behaves. ``decline`` is the code of a charge; ``attach_fails`` declines already when it is saved."""

    number: str
    brand: str = "visa"
    code: str | None = None  # of the error, when charging fails
    decline: str | None = None
    attach_fails: bool = False
    authentication: str = "none"  # none, unless_set_up (saved for later use: not needed any more) or always
    disputed: bool = False
    refund_fails: bool = False

    @property
    def last4(self) -> str:
        return self.number[-4:]


def _declined(number: str, decline: str, *, code: str = "card_declined", attach_fails: bool = True) -> TestCard:
    return TestCard(number=number, code=code, decline=decline, attach_fails=attach_fails)


CARDS: Final = {
    "visa": TestCard(number="4242424242424242"),
    "mastercard": TestCard(number="5555555555554444", brand="mastercard"),
    "amex": TestCard(number="378282246310005", brand="amex"),
    "chargeDeclined": _declined("4000000000000002", "generic_decline"),
    "chargeDeclinedInsufficientFunds": _declined("4000000000009995", "insufficient_funds"),
    "chargeDeclinedLostCard": _declined("4000000000009987", "lost_card"),
    "chargeDeclinedStolenCard": _declined("4000000000009979", "stolen_card"),
    "chargeDeclinedExpiredCard": _declined("4000000000000069", "expired_card", code="expired_card"),
    "chargeDeclinedIncorrectCvc": _declined("4000000000000127", "incorrect_cvc", code="incorrect_cvc"),
    "chargeDeclinedProcessingError": _declined("4000000000000119", "processing_error", code="processing_error"),
    "chargeCustomerFail": _declined("4000000000000341", "generic_decline", attach_fails=False),
    "threeDSecure2Required": TestCard(number="4000000000003220", authentication="always"),
    "authenticationRequired": TestCard(number="4000002760003184", authentication="always"),
    "authenticationRequiredOnSetup": TestCard(number="4000002500003155", authentication="unless_set_up"),
    "authenticationRequiredChargeDeclinedInsufficientFunds": TestCard(
        number="4000008260003178", code="card_declined", decline="insufficient_funds", authentication="unless_set_up"
    ),
    "createDispute": TestCard(number="4000000000000259", disputed=True),
    "refundFail": TestCard(number="4000000000005126", refund_fails=True),
}
"""By the name in the test tokens: ``pm_card_NAME``, ``pm_card_visa_NAME`` and ``tok_NAME``."""


def card_name(token: str) -> str | None:
    """The name of the card that a token or a number stands for."""
    bare = token.replace(" ", "")
    by_number = {card.number: name for name, card in CARDS.items()}
    name = bare.removeprefix("pm_card_").removeprefix("tok_")
    if name not in CARDS:
        name = name.removeprefix("visa_")
    return by_number.get(bare) or (name if name in CARDS and name != bare else None)


def advice(decline: str) -> str:
    """The message of a decline, in Stripe's words."""
    messages = {
        "insufficient_funds": "Your card has insufficient funds.",
        "expired_card": "Your card has expired.",
        "incorrect_cvc": "Your card's security code is incorrect.",
        "processing_error": "An error occurred while processing your card. Try again in a little bit.",
        "authentication_required": "Your card was declined. This transaction requires authentication.",
    }
    return messages.get(decline, "Your card was declined.")
