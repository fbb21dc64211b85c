"""Cards of customers: made from test tokens, attached, detached and listed. What a card does is in ``cards``."""

from typing import Any

from tenora.stripe_simulator.cards import CARDS, TestCard, advice, card_name
from tenora.stripe_simulator.errors import ApiError, require
from tenora.stripe_simulator.simulation import Object, Simulation


def from_token(sim: Simulation, token: str, param: str) -> Object:
    """A new payment method for ``pm_card_visa`` and its like."""
    name = card_name(token)
    if name is None:
        raise ApiError(f"No such PaymentMethod: '{token}'", code="resource_missing", param=param)
    card = CARDS[name]
    details: dict[str, Any] = {
        "brand": card.brand,
        "checks": {"address_line1_check": None, "address_postal_code_check": None, "cvc_check": "pass"},
        "country": "US",
        "display_brand": card.brand,
        "exp_month": 12,
        "exp_year": 2040,
        "fingerprint": f"simulated{card.last4}",
        "funding": "credit",
        "generated_from": None,
        "last4": card.last4,
        "networks": {"available": [card.brand], "preferred": None},
        "regulated_status": "unregulated",
        "three_d_secure_usage": {"supported": True},
        "wallet": None,
    }
    fields = {"type": "card", "billing_details": {}, "card": details, "metadata": {}, "allow_redisplay": "unspecified"}
    return sim.create("payment_method", "pm", fields, card=name, set_up=False)


def resolve(sim: Simulation, given: str, param: str = "payment_method") -> Object:
    """The payment method of an id, or a new one of a test token."""
    return from_token(sim, given, param) if given.startswith("pm_card_") else sim.get("payment_method", given, param)


def behaviour(sim: Simulation, method: Object) -> tuple[TestCard, bool]:
    """What the card does, and whether its owner has already confirmed it for later use."""
    hidden = sim.store.hidden(method["id"])
    return CARDS[hidden["card"]], bool(hidden["set_up"])


def attach(sim: Simulation, given: dict[str, Any], method: str) -> Object:
    require(given, "customer")
    found = resolve(sim, method, "payment_method")
    sim.get("customer", given["customer"], "customer")
    card, _ = behaviour(sim, found)
    if card.attach_fails and card.decline:
        raise ApiError(
            advice(card.decline), status=402, kind="card_error", code=card.code, param="", decline_code=card.decline
        )
    return attach_to(sim, found, given["customer"])


def attach_to(sim: Simulation, method: Object, customer: str) -> Object:
    """Save the card for the customer."""
    if method["customer"] == customer:
        return method
    if method["customer"] is not None or sim.store.hidden(method["id"]).get("detached"):
        raise ApiError(
            "The payment method you provided has already been attached to a customer.",
            code="payment_method_unexpected_state",
        )
    method["customer"] = customer
    sim.save(method)
    sim.emit("payment_method.attached", method)
    return method


def detach(sim: Simulation, given: dict[str, Any], method: str) -> Object:
    found = sim.get("payment_method", method)
    if found["customer"] is None:
        raise ApiError("The payment method you provided is not attached to a customer so detachment is impossible.")
    owner = sim.get("customer", found["customer"])
    if owner["invoice_settings"]["default_payment_method"] == method:
        owner["invoice_settings"]["default_payment_method"] = None
        sim.save(owner)
    before, found["customer"] = found["customer"], None
    sim.save(found)
    sim.store.hide(method, detached=True)
    sim.emit("payment_method.detached", found, {"customer": before})
    return found


def list_of_customer(sim: Simulation, given: dict[str, Any], customer: str) -> Object:
    sim.get("customer", customer)
    return sim.page("payment_method", f"/v1/customers/{customer}/payment_methods", {**given, "customer": customer})
