"""Payment intents, which charge a card once or wait for its owner, and setup intents, which save one."""

from typing import Any, Final, Literal

from tenora.stripe_simulator import cards, returns
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import Currency, ListParameters, Parameters, Text, WithMetadata
from tenora.stripe_simulator.simulation import Object, Simulation

MINIMUM_CENTS: Final = 50
AMOUNT_MAX: Final = 99_999_999
_ASKS: Final = {"status": "requires_action", "next_action": {"type": "use_stripe_sdk", "use_stripe_sdk": {}}}


class NewIntent(WithMetadata, frozen=True, kw_only=True):
    """A payment is confirmed without its owner, at once, or waits for a card."""

    amount: int
    currency: Currency
    customer: Text | None = None
    payment_method: Text | None = None
    confirm: bool = False
    allowed_payment_method_types: tuple[Literal["card"], ...] = ()
    description: Text | None = None
    off_session: bool = False


class ListOfCustomer(ListParameters, frozen=True):
    customer: Text | None = None


def create(sim: Simulation, given: NewIntent) -> Object:
    if given.amount < MINIMUM_CENTS:
        raise ApiError(f"Amount must be at least $0.50 {given.currency}", code="amount_too_small", param="amount")
    if given.amount > AMOUNT_MAX:
        raise ApiError("Amount must be at most $999,999.99", code="amount_too_large", param="amount")
    if given.customer is not None:
        sim.get("customer", given.customer, "customer")
    intent = start(sim, given.customer, given.amount, given.currency, given.description, given.metadata)
    if not given.confirm:
        return intent
    if not given.off_session:
        raise ApiError("The Stripe simulator confirms payments on session on a page of Checkout.", param="off_session")
    method = sim.get("payment_method", given.payment_method or "", "payment_method")
    if method["customer"] != given.customer:
        raise ApiError(
            "The PaymentMethod provided is not attached to the customer of the payment.",
            code="payment_method_unexpected_state",
            param="payment_method",
        )
    return attempt(sim, intent, method, off_session=True)


def start(
    sim: Simulation, customer: str | None, amount: int, currency: str, description: str | None, metadata: dict[str, str]
) -> Object:
    """A new payment intent that waits for a card."""
    fields = {
        "amount": amount,
        "amount_capturable": 0,
        "amount_received": 0,
        "canceled_at": None,
        "capture_method": "automatic_async",
        "confirmation_method": "automatic",
        "currency": currency,
        "customer": customer,
        "description": description,
        "last_payment_error": None,
        "latest_charge": None,
        "metadata": metadata,
        "next_action": None,
        "payment_method": None,
        "payment_method_types": ["card"],
        "status": "requires_payment_method",
    }
    return sim.create("payment_intent", fields, event="payment_intent.created")


def attempt(
    sim: Simulation, intent: Object, method: Object, *, off_session: bool = False, authenticated: bool = False
) -> Object:
    """Charge the card once. The intent then has succeeded or waits for the owner. Raises ApiError (402)."""
    _require_open(intent)
    card, wants_owner = cards.behaviour(sim, method)
    if wants_owner and not authenticated:
        if off_session:
            raise _declined(sim, intent, method, "authentication_required", "authentication_required")
        return sim.save(intent | _ASKS | {"payment_method": method["id"]}, "payment_intent.requires_action")
    if card.decline:
        raise _declined(sim, intent, method, card.code, card.decline)
    paid = _charge(sim, intent, method, None)
    if card.disputed:
        returns.open_dispute(sim, paid, "fraudulent")
    changes = {
        "amount_received": intent["amount"],
        "last_payment_error": None,
        "latest_charge": paid["id"],
        "next_action": None,
        "payment_method": method["id"],
        "status": "succeeded",
    }
    return sim.save(intent | changes, "payment_intent.succeeded")


def _charge(sim: Simulation, intent: Object, method: Object, decline: str | None) -> Object:
    fields: dict[str, Any] = {
        "amount": intent["amount"],
        "amount_captured": 0 if decline else intent["amount"],
        "amount_refunded": 0,
        "balance_transaction": None,
        "billing_details": {},
        "captured": not decline,
        "currency": intent["currency"],
        "customer": intent["customer"],
        "description": intent["description"],
        "disputed": False,
        "failure_code": decline,
        "failure_message": cards.message_of(decline) if decline else None,
        "metadata": intent["metadata"],
        "paid": not decline,
        "payment_intent": intent["id"],
        "payment_method": method["id"],
        "refunded": False,
        "status": "failed" if decline else "succeeded",
    }
    return sim.create("charge", fields, event="charge.failed" if decline else "charge.succeeded")


def _declined(
    sim: Simulation, intent: Object, method: Object, code: str, decline: str, *, charged: bool = True
) -> ApiError:
    """Record the decline in the intent, which waits for another card. It is answered with 402."""
    charge = _charge(sim, intent, method, decline)["id"] if charged else None
    error = {"type": "card_error", "code": code, "decline_code": decline, "message": cards.message_of(decline)}
    error |= {"charge": charge} if charge else {}
    changes = {
        "last_payment_error": error | {"payment_method": method},
        "latest_charge": charge or intent["latest_charge"],
        "next_action": None,
        "payment_method": None,
        "status": "requires_payment_method",
    }
    failed = sim.save(intent | changes, "payment_intent.payment_failed")
    return ApiError(
        error["message"], status=402, kind="card_error", code=code, decline_code=decline, charge=charge,
        payment_intent=failed, keeps_changes=True,
    )  # fmt: skip


def authenticate(sim: Simulation, intent: Object, *, confirmed: bool) -> Object:
    """The owner confirms a payment that waits for 3D Secure, or fails to. Raises ApiError (402)."""
    method = sim.get("payment_method", intent["payment_method"])
    if confirmed:
        return attempt(sim, intent, method, authenticated=True)
    code = "payment_intent_authentication_failure"
    raise _declined(sim, intent, method, code, "authentication_not_handled", charged=False)


def cancel(sim: Simulation, _: Parameters, intent_id: str) -> Object:
    intent = sim.get("payment_intent", intent_id)
    _require_open(intent)
    changes = {"canceled_at": sim.now(intent["customer"]), "next_action": None, "status": "canceled"}
    return sim.save(intent | changes, "payment_intent.canceled")


def _require_open(intent: Object) -> None:
    if intent["status"] in ("succeeded", "canceled"):
        raise ApiError(
            f"This PaymentIntent has a status of {intent['status']} and can be neither confirmed nor canceled.",
            code="payment_intent_unexpected_state",
            payment_intent=intent,
        )


def start_setup(sim: Simulation, customer: str, metadata: dict[str, str]) -> Object:
    """A new setup intent that waits for a card."""
    fields = {
        "customer": customer,
        "last_setup_error": None,
        "metadata": metadata,
        "next_action": None,
        "payment_method": None,
        "payment_method_types": ["card"],
        "status": "requires_payment_method",
        "usage": "off_session",
    }
    return sim.create("setup_intent", fields, event="setup_intent.created")


def set_up(sim: Simulation, setup: Object, method: Object, *, authenticated: bool = False) -> Object:
    """Save the card for payments without its owner, or wait for the owner. Raises ApiError (402)."""
    _, wants_owner = cards.behaviour(sim, method)
    if wants_owner and not authenticated:
        return sim.save(setup | _ASKS | {"payment_method": method["id"]}, "setup_intent.requires_action")
    cards.save_for(sim, method, setup["customer"], confirmed=True)
    changes = {"status": "succeeded", "next_action": None, "payment_method": method["id"]}
    return sim.save(setup | changes, "setup_intent.succeeded")
