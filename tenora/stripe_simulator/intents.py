"""Payment and setup intents: created, confirmed, authenticated by the card's owner, canceled.

Whether a card pays is decided in ``charges``; what an invoice makes of it is in ``invoices``.
"""

from typing import Any, Final

from tenora.stripe_simulator import charges, payment_methods
from tenora.stripe_simulator.cards import advice
from tenora.stripe_simulator.charges import Declined
from tenora.stripe_simulator.errors import ApiError, not_simulated
from tenora.stripe_simulator.simulation import Object, Simulation

MINIMUM_CENTS: Final = 50
CURRENCIES: Final = ("usd", "eur")  # whose minimum charge is 0.50
AMOUNT_MAX: Final = 99_999_999
_CONFIRMABLE: Final = ("requires_payment_method", "requires_confirmation", "requires_action")


def check_currency(currency: str, param: str = "currency") -> None:
    if currency not in CURRENCIES:
        raise ApiError(
            f"Invalid currency: {currency}. The Stripe simulator supports {' and '.join(CURRENCIES)}.", param=param
        )


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    check_currency(given["currency"])
    if given["amount"] < MINIMUM_CENTS:
        raise ApiError(f"Amount must be at least $0.50 {given['currency']}", code="amount_too_small", param="amount")
    if given["amount"] > AMOUNT_MAX:
        raise ApiError("Amount must be at most $999,999.99", code="amount_too_large", param="amount")
    if given.get("off_session") not in (None, True, False, "true", "false"):
        raise not_simulated(f"off_session={given['off_session']}", "off_session")
    intent = start(sim, given, given.get("customer"), given["amount"], given["currency"])
    if not given.get("confirm"):
        return intent
    return confirm(sim, {name: given[name] for name in ("off_session", "return_url") if name in given}, intent["id"])


def start(sim: Simulation, given: dict[str, Any], customer: str | None, amount: int, currency: str) -> Object:
    """A new payment intent that waits for its confirmation."""
    if customer is not None:
        sim.get("customer", customer, "customer")
    method = _usable(sim, given["payment_method"], customer) if "payment_method" in given else None
    fields = {
        "amount": amount,
        "amount_capturable": 0,
        "amount_received": 0,
        "capture_method": "automatic_async",
        "client_secret": sim.new_id("pi") + "_secret_" + sim.new_id("s")[2:],
        "confirmation_method": "automatic",
        "currency": currency,
        "customer": customer,
        "description": given.get("description"),
        "metadata": given.get("metadata") or {},
        "payment_method": method["id"] if method else None,
        "payment_method_types": ["card"],
        "setup_future_usage": given.get("setup_future_usage"),
        "status": "requires_confirmation" if method else "requires_payment_method",
    }
    intent = sim.create("payment_intent", "pi", fields, customer=customer)
    sim.emit("payment_intent.created", intent)
    return intent


def _usable(sim: Simulation, token: str, customer: str | None) -> Object:
    method = payment_methods.resolve(sim, token)
    if method["customer"] not in (None, customer):
        raise ApiError(
            "The PaymentMethod provided belongs to another customer. Give its customer, or another PaymentMethod.",
            code="payment_method_unexpected_state",
            param="payment_method",
        )
    return method


def confirm(sim: Simulation, given: dict[str, Any], intent_id: str) -> Object:
    """Try to pay. A decline is a 402; on session, a card that wants its owner leaves the intent waiting for them."""
    intent = sim.get("payment_intent", intent_id)
    if intent["status"] not in _CONFIRMABLE:
        raise ApiError(
            f"You cannot confirm this PaymentIntent because it has a status of {intent['status']}.",
            code="payment_intent_unexpected_state",
            payment_intent=intent,
        )
    token = given.get("payment_method", intent["payment_method"])
    if token is None:
        raise ApiError(
            "You cannot confirm this PaymentIntent because it's missing a payment method.",
            code="payment_intent_unexpected_state",
            payment_intent=intent,
        )
    method = _usable(sim, token, intent["customer"])
    off_session = given.get("off_session") in (True, "true")
    try:
        return attempt(sim, intent, method, off_session=off_session)
    except Declined as declined:
        if declined.needs_action and not off_session:
            return sim.get("payment_intent", intent_id)
        raise refusal(sim, declined, intent_id) from declined


def attempt(
    sim: Simulation, intent: Object, method: Object, *, off_session: bool, authenticated: bool = False
) -> Object:
    """Charge the card once and record the outcome in the intent. Raises Declined."""
    intent["payment_method"] = method["id"]
    try:
        paid = charges.charge(sim, intent, method, off_session=off_session, authenticated=authenticated)
    except Declined as declined:
        waits = declined.needs_action and not off_session
        intent["status"] = "requires_action" if waits else "requires_payment_method"
        intent["next_action"] = _next_action(sim, intent) if waits else None
        intent["latest_charge"] = declined.charge or intent["latest_charge"]
        if not waits:
            intent["last_payment_error"] = _error_of(declined, method)
            intent["payment_method"] = None
        sim.save(intent)
        sim.emit(f"payment_intent.{'requires_action' if waits else 'payment_failed'}", intent)
        raise
    intent |= {
        "status": "succeeded",
        "amount_received": intent["amount"],
        "latest_charge": paid["id"],
        "last_payment_error": None,
        "next_action": None,
    }
    sim.save(intent)
    if intent["setup_future_usage"] and intent["customer"]:
        payment_methods.attach_to(sim, method, intent["customer"])
        sim.store.hide(method["id"], set_up=True)
    sim.emit("payment_intent.succeeded", intent)
    return intent


def _next_action(sim: Simulation, intent: Object) -> Object:
    url = f"{sim.base_url}/authenticate/{intent['id']}"
    return {"type": "redirect_to_url", "redirect_to_url": {"return_url": None, "url": url}}


def _error_of(declined: Declined, method: Object | None) -> Object:
    return {
        "type": "card_error",
        "code": declined.code,
        "decline_code": declined.decline_code,
        "message": advice(declined.decline_code),
        "payment_method": method,
    } | ({"charge": declined.charge} if declined.charge else {})


def refusal(sim: Simulation, declined: Declined, intent_id: str) -> ApiError:
    """The 402 of a declined card, with the intent as it is now."""
    return ApiError(
        advice(declined.decline_code),
        status=402,
        kind="card_error",
        code=declined.code,
        decline_code=declined.decline_code,
        charge=declined.charge,
        payment_intent=sim.get("payment_intent", intent_id),
        keeps_changes=True,
    )


def authenticate(sim: Simulation, intent: Object, *, confirmed: bool) -> Object:
    """The owner confirms the payment (3D Secure) or fails to. Raises Declined."""
    if intent["status"] != "requires_action":
        raise ApiError(f"{intent['id']} does not wait for its owner: it is {intent['status']}.")
    method = sim.get("payment_method", intent["payment_method"])
    if confirmed:
        return attempt(sim, intent, method, off_session=False, authenticated=True)
    failed = Declined("payment_intent_authentication_failure", "authentication_not_handled", None)
    intent |= {"status": "requires_payment_method", "next_action": None, "payment_method": None}
    intent["last_payment_error"] = _error_of(failed, method)
    sim.save(intent)
    sim.emit("payment_intent.payment_failed", intent)
    raise failed


def cancel(sim: Simulation, given: dict[str, Any], intent_id: str) -> Object:
    intent = sim.get("payment_intent", intent_id)
    if intent["status"] in ("succeeded", "canceled"):
        raise ApiError(
            f"You cannot cancel this PaymentIntent because it has a status of {intent['status']}.",
            code="payment_intent_unexpected_state",
            payment_intent=intent,
        )
    return end(sim, intent, given.get("cancellation_reason"))


def end(sim: Simulation, intent: Object, reason: str | None) -> Object:
    intent |= {"status": "canceled", "canceled_at": sim.now(intent["customer"]), "cancellation_reason": reason}
    intent["next_action"] = None
    sim.save(intent)
    sim.emit("payment_intent.canceled", intent)
    return intent


def create_setup(sim: Simulation, given: dict[str, Any]) -> Object:
    customer = given.get("customer")
    if customer is not None:
        sim.get("customer", customer, "customer")
    method = _usable(sim, given["payment_method"], customer) if "payment_method" in given else None
    fields = {
        "client_secret": sim.new_id("seti") + "_secret_" + sim.new_id("s")[2:],
        "customer": customer,
        "description": given.get("description"),
        "metadata": given.get("metadata") or {},
        "payment_method": method["id"] if method else None,
        "payment_method_types": ["card"],
        "status": "requires_confirmation" if method else "requires_payment_method",
        "usage": given.get("usage", "off_session"),
    }
    setup = sim.create("setup_intent", "seti", fields, customer=customer)
    sim.emit("setup_intent.created", setup)
    return confirm_setup(sim, {}, setup["id"]) if given.get("confirm") else setup


def confirm_setup(sim: Simulation, given: dict[str, Any], setup_id: str, *, authenticated: bool = False) -> Object:
    """Save the card for later use, or wait for its owner. A card that cannot be saved is a 402."""
    setup = sim.get("setup_intent", setup_id)
    token = given.get("payment_method", setup["payment_method"])
    if setup["status"] not in _CONFIRMABLE or token is None:
        raise ApiError(
            f"You cannot confirm this SetupIntent because it has a status of {setup['status']}.",
            code="setup_intent_unexpected_state",
        )
    method = _usable(sim, token, setup["customer"])
    card, _ = payment_methods.behaviour(sim, method)
    setup["payment_method"] = method["id"]
    if card.attach_fails and card.decline:
        declined = Declined(card.code or "card_declined", card.decline, None)
        setup |= {"status": "requires_payment_method", "payment_method": None}
        setup["last_setup_error"] = _error_of(declined, method)
        sim.save(setup)
        sim.emit("setup_intent.setup_failed", setup)
        raise ApiError(
            advice(card.decline), status=402, kind="card_error", code=card.code, decline_code=card.decline,
            setup_intent=setup, keeps_changes=True,
        )  # fmt: skip
    if card.authentication != "none" and not authenticated:
        url = f"{sim.base_url}/authenticate/{setup_id}"
        setup |= {"status": "requires_action"}
        setup["next_action"] = {"type": "redirect_to_url", "redirect_to_url": {"return_url": None, "url": url}}
        sim.save(setup)
        sim.emit("setup_intent.requires_action", setup)
        return setup
    setup |= {"status": "succeeded", "next_action": None, "last_setup_error": None}
    sim.save(setup)
    sim.store.hide(method["id"], set_up=True)
    if setup["customer"]:
        payment_methods.attach_to(sim, method, setup["customer"])
    sim.emit("setup_intent.succeeded", setup)
    return setup
