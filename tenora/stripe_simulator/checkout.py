"""Pages on which a card's owner acts: Checkout sessions that take a payment or save a card, and the portal.

What the owner sees is in ``page``.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from tenora.stripe_simulator import cards, customers, intents
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import Currency, Parameters, Text, WithMetadata
from tenora.stripe_simulator.simulation import Object, Simulation

_LIFE_S: Final = 86_400


class Product(Parameters, frozen=True):
    name: Text


class PriceData(Parameters, frozen=True):
    currency: Currency
    unit_amount: Annotated[int, Meta(ge=0)]
    product_data: Product


class LineItem(Parameters, frozen=True):
    price_data: PriceData
    quantity: Annotated[int, Meta(ge=1)]


class IntentData(WithMetadata, frozen=True, kw_only=True):
    description: Text | None = None


class NewSession(WithMetadata, frozen=True, kw_only=True):
    mode: Literal["payment", "setup"]
    customer: Text
    success_url: Text
    cancel_url: Text | None = None
    currency: Currency | None = None
    line_items: tuple[LineItem, ...] = ()
    allowed_payment_method_types: tuple[Literal["card"], ...] = ()
    payment_intent_data: IntentData = IntentData()
    setup_intent_data: WithMetadata = WithMetadata()


class NewPortalSession(Parameters, frozen=True):
    customer: Text
    return_url: Text | None = None


def create(sim: Simulation, given: NewSession) -> Object:
    sim.get("customer", given.customer, "customer")
    payment = given.mode == "payment"
    if payment == bool(given.currency) or payment != bool(given.line_items):
        raise ApiError(
            "`line_items` is required in `payment` mode, `currency` in `setup` mode; the other one is not simulated.",
            code="parameter_missing",
            param="line_items" if payment else "currency",
        )
    currency, amount = given.currency, None
    if payment:
        currency = given.line_items[0].price_data.currency
        amount = sum(item.quantity * item.price_data.unit_amount for item in given.line_items)
        if amount < intents.MINIMUM_CENTS:
            raise ApiError(
                "The Checkout Session's total amount must convert to at least 50 cents.", code="amount_too_small"
            )
    setup = None if payment else intents.start_setup(sim, given.customer, given.setup_intent_data.metadata)
    fields: dict[str, Any] = {
        "amount_subtotal": amount,
        "amount_total": amount,
        "automatic_tax": {"enabled": False},
        "cancel_url": given.cancel_url,
        "currency": currency,
        "custom_fields": [],
        "custom_text": {},
        "customer": given.customer,
        "expires_at": sim.now(given.customer) + _LIFE_S,
        "metadata": given.metadata,
        "mode": given.mode,
        "payment_intent": None,
        "payment_method_types": ["card"],
        "payment_status": "unpaid" if payment else "no_payment_required",
        "setup_intent": setup["id"] if setup else None,
        "shipping_options": [],
        "status": "open",
        "success_url": given.success_url,
        "ui_mode": "hosted_page",
    }
    data = given.payment_intent_data
    session = sim.create("checkout.session", fields, {"description": data.description, "metadata": data.metadata})
    return sim.save(session | {"url": f"{sim.base_url}/checkout/{session['id']}"})


def act(sim: Simulation, session_id: str, *, card: str | None, confirmed: bool | None) -> Object:
    """The owner enters a card, or answers 3D Secure. The session is then complete or still open. Raises ApiError."""
    session = sim.get("checkout.session", session_id)
    if session["status"] != "open":
        raise ApiError(f"This Checkout Session is {session['status']}; nothing can be paid on it.")
    if confirmed is not None:
        return _authenticate(sim, session, confirmed=confirmed)
    return _submit(sim, session, card or "")


def _submit(sim: Simulation, session: Object, token: str) -> Object:
    method = cards.new_card(sim, token, "card")
    if session["mode"] == "setup":
        return _finish(sim, session, intents.set_up(sim, sim.get("setup_intent", session["setup_intent"]), method))
    if session["payment_intent"] is None:
        wanted = sim.store.hidden(session["id"])
        intent = intents.start(sim, session["customer"], session["amount_total"], session["currency"], **wanted)
        session = sim.save(session | {"payment_intent": intent["id"]})
    intent = sim.get("payment_intent", session["payment_intent"])
    return _finish(sim, session, intents.attempt(sim, intent, method))


def _authenticate(sim: Simulation, session: Object, *, confirmed: bool) -> Object:
    intent = waiting(sim, session)
    if intent is None:
        raise ApiError(f"{session['id']} does not wait for its owner's bank.")
    if session["mode"] == "payment":
        return _finish(sim, session, intents.authenticate(sim, intent, confirmed=confirmed))
    if not confirmed:
        sim.save(intent | {"status": "requires_payment_method", "next_action": None, "payment_method": None})
        raise ApiError(
            cards.message_of("authentication_not_handled"), status=402, kind="card_error",
            code="setup_intent_authentication_failure", keeps_changes=True,
        )  # fmt: skip
    method = sim.get("payment_method", intent["payment_method"])
    return _finish(sim, session, intents.set_up(sim, intent, method, authenticated=True))


def waiting(sim: Simulation, session: Object) -> Object | None:
    """The session's intent, if it waits for 3D Secure."""
    intent = sim.store.load(session["payment_intent"] or session["setup_intent"] or "")
    return intent if intent is not None and intent["status"] == "requires_action" else None


def _finish(sim: Simulation, session: Object, intent: Object) -> Object:
    if intent["status"] != "succeeded":
        return session
    paid = "paid" if session["mode"] == "payment" else "no_payment_required"
    changes = {"status": "complete", "url": None, "payment_status": paid}
    return sim.save(session | changes, "checkout.session.completed")


def expire(sim: Simulation, given: Parameters, session_id: str) -> Object:
    session = sim.get("checkout.session", session_id)
    if session["status"] != "open":
        raise ApiError(
            f'Only Checkout Sessions with a status in ["open"] can be expired. This one is {session["status"]}.',
            code="resource_invalid_state",
        )
    return _expire(sim, session)


def _expire(sim: Simulation, session: Object) -> Object:
    return sim.save(session | {"status": "expired", "url": None}, "checkout.session.expired")


def expire_due(sim: Simulation) -> None:
    """Close the sessions whose time has passed."""
    for session in list(sim.store.select("checkout.session", status="open")):
        if session["expires_at"] <= sim.now(session["customer"]):
            _expire(sim, session)


def open_portal(sim: Simulation, given: NewPortalSession) -> Object:
    sim.get("customer", given.customer, "customer")
    fields = {"configuration": "bpc_simulated", "customer": given.customer, "return_url": given.return_url, "url": ""}
    session = sim.create("billing_portal.session", fields)
    return sim.save(session | {"url": f"{sim.base_url}/portal/{session['id']}"})


def use_portal(sim: Simulation, session_id: str, token: str) -> Object:
    """The owner adds a card, which is charged from then on. Raises ApiError (402)."""
    session = sim.get("billing_portal.session", session_id)
    method = cards.save_for(sim, cards.new_card(sim, token, "card"), session["customer"], confirmed=True)
    chosen = customers.CustomerSettings(default_payment_method=method["id"])
    customers.update(sim, customers.CustomerChanges(invoice_settings=chosen), session["customer"])
    return session
