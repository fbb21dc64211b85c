"""Stripe's documented test cards, what each does (https://docs.stripe.com/testing), and those that customers saved.

No other number is accepted.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import ListParameters, Parameters, Text
from tenora.stripe_simulator.simulation import Object, Simulation


@dataclass(frozen=True, kw_only=True)
class TestCard:
    """How a card behaves. ``decline`` is the code of a charge; ``can_be_saved`` is false if saving it fails already."""

    number: str
    brand: str = "visa"
    code: str = "card_declined"  # of the error, when charging fails
    decline: str | None = None
    can_be_saved: bool = True
    authentication: Literal["none", "unless_saved", "always"] = "none"
    disputed: bool = False
    refund_fails: bool = False


def _declined(number: str, decline: str, code: str = "card_declined") -> TestCard:
    return TestCard(number=number, code=code, decline=decline, can_be_saved=False)


CARDS: Final = {
    "visa": TestCard(number="4242424242424242"),
    "mastercard": TestCard(number="5555555555554444", brand="mastercard"),
    "chargeDeclined": _declined("4000000000000002", "generic_decline"),
    "chargeDeclinedInsufficientFunds": _declined("4000000000009995", "insufficient_funds"),
    "chargeDeclinedLostCard": _declined("4000000000009987", "lost_card"),
    "chargeDeclinedExpiredCard": _declined("4000000000000069", "expired_card", "expired_card"),
    "chargeCustomerFail": TestCard(number="4000000000000341", decline="generic_decline"),
    "authenticationRequired": TestCard(number="4000002760003184", authentication="always"),
    "authenticationRequiredOnSetup": TestCard(number="4000002500003155", authentication="unless_saved"),
    "createDispute": TestCard(number="4000000000000259", disputed=True),
    "refundFail": TestCard(number="4000000000005126", refund_fails=True),
}
"""By the name in the test tokens ``pm_card_NAME`` and ``pm_card_visa_NAME``."""
_MESSAGES: Final = {
    "insufficient_funds": "Your card has insufficient funds.",
    "expired_card": "Your card has expired.",
    "authentication_required": "Your card was declined. This transaction requires authentication.",
    "authentication_not_handled": "We are unable to authenticate your payment method.",
}


class AttachCard(Parameters, frozen=True):
    customer: Text


class ListCards(ListParameters, frozen=True):
    type: Literal["card"] | None = None


def message_of(decline: str) -> str:
    """What Stripe says of a decline."""
    return _MESSAGES.get(decline, "Your card was declined.")


def card_name(token: str) -> str | None:
    """The name of the card that a token or a number stands for."""
    bare = token.replace(" ", "")
    name = bare.removeprefix("pm_card_")
    if name not in CARDS:
        name = name.removeprefix("visa_")
    by_number = {card.number: each for each, card in CARDS.items()}
    return by_number.get(bare) or (name if name in CARDS and name != bare else None)


def new_card(sim: Simulation, token: str, param: str = "payment_method") -> Object:
    """A payment method that belongs to no customer yet."""
    name = card_name(token)
    if name is None:
        raise ApiError(f"No such PaymentMethod: '{token}'", code="resource_missing", param=param)
    card = CARDS[name]
    details: dict[str, Any] = {
        "brand": card.brand,
        "country": "US",
        "exp_month": 12,
        "exp_year": 2040,
        "funding": "credit",
        "last4": card.number[-4:],
    }
    fields = {"type": "card", "customer": None, "billing_details": {}, "card": details, "metadata": {}}
    return sim.create("payment_method", fields, {"card": name, "saved": False})


def behaviour(sim: Simulation, method: Object) -> tuple[TestCard, bool]:
    """What the card does, and whether its owner has to confirm a payment."""
    hidden = sim.store.hidden(method["id"])
    card = CARDS[hidden["card"]]
    return card, card.authentication == "always" or (card.authentication == "unless_saved" and not hidden["saved"])


def attach(sim: Simulation, given: AttachCard, method: str) -> Object:
    sim.get("customer", given.customer, "customer")
    found = new_card(sim, method) if method.startswith("pm_card_") else sim.get("payment_method", method)
    return save_for(sim, found, given.customer)


def save_for(sim: Simulation, method: Object, customer: str, *, confirmed: bool = False) -> Object:
    """Save the card for the customer; ``confirmed`` by its owner. Raises ApiError (402) if it cannot be saved."""
    card, _ = behaviour(sim, method)
    if card.decline and not card.can_be_saved:
        raise ApiError(
            message_of(card.decline), status=402, kind="card_error", code=card.code, decline_code=card.decline
        )
    if method["customer"] is not None:
        raise ApiError(
            "The payment method you provided has already been attached to a customer.",
            code="payment_method_unexpected_state",
        )
    sim.store.hide(method["id"], saved=confirmed)
    return sim.save(method | {"customer": customer}, "payment_method.attached")


def list_cards(sim: Simulation, given: ListCards, customer: str) -> Object:
    sim.get("customer", customer)
    url = f"/v1/customers/{customer}/payment_methods"
    return sim.page("payment_method", url, given, lambda method: method["customer"] == customer)
