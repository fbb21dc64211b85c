"""Checkout sessions in the modes payment and setup, and portal sessions. Their pages are in ``pages``."""

from typing import Any, Final

from tenora.stripe_simulator import intents, payment_methods
from tenora.stripe_simulator.charges import Declined
from tenora.stripe_simulator.errors import ApiError, not_simulated, require
from tenora.stripe_simulator.resources import complete
from tenora.stripe_simulator.simulation import Object, Simulation

_LIFE_S: Final = 86_400
_LIFE_MIN_S: Final = 1_800


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    mode = given.get("mode")
    if mode not in ("payment", "setup"):
        raise not_simulated(f"Checkout in mode {mode}", "mode")
    require(given, "success_url")
    customer = given.get("customer")
    if customer is not None:
        sim.get("customer", customer, "customer")
    now = sim.now(customer)
    expires = given.get("expires_at", now + _LIFE_S)
    if not now + _LIFE_MIN_S <= expires <= now + _LIFE_S:
        raise ApiError(
            "`expires_at` must be between 30 minutes and 24 hours after Checkout creation.", param="expires_at"
        )
    items = _items(given, mode)
    amount = sum(each["amount_total"] for each in items) if mode == "payment" else None
    fields = {
        "allow_promotion_codes": None,
        "amount_subtotal": amount,
        "amount_total": amount,
        "automatic_tax": {"enabled": False},
        "cancel_url": given.get("cancel_url"),
        "client_reference_id": given.get("client_reference_id"),
        "currency": items[0]["currency"] if items else given.get("currency"),
        "custom_fields": [],
        "custom_text": {},
        "customer": customer,
        "expires_at": expires,
        "metadata": given.get("metadata") or {},
        "mode": mode,
        "payment_method_types": ["card"],
        "payment_status": "unpaid" if mode == "payment" else "no_payment_required",
        "setup_intent": _setup(sim, given, customer) if mode == "setup" else None,
        "shipping_options": [],
        "status": "open",
        "success_url": given["success_url"],
        "ui_mode": "hosted_page",
    }
    session = sim.create(
        "checkout.session", "cs_test", fields, customer=customer,
        items=items, intent=given.get("payment_intent_data") or {},
    )  # fmt: skip
    session["url"] = f"{sim.base_url}/checkout/{session['id']}"
    return sim.save(session)


def _items(given: dict[str, Any], mode: str) -> list[Object]:
    if mode == "setup":
        require(given, "currency")
        if "line_items" in given:
            raise ApiError("You can not pass `line_items` in `setup` mode.", param="line_items")
        return []
    if not given.get("line_items"):
        raise ApiError("`line_items` is required in `payment` mode.", code="parameter_missing", param="line_items")
    items = []
    for place, each in enumerate(given["line_items"]):
        price = each.get("price_data")
        if price is None or "unit_amount" not in price or "product_data" not in price:
            raise not_simulated("line items without price_data, unit_amount and product_data", f"line_items[{place}]")
        intents.check_currency(price["currency"], f"line_items[{place}][price_data][currency]")
        amount = price["unit_amount"] * each.get("quantity", 1)
        items.append(
            complete("item", {
                "id": f"li_{place}", "amount_discount": 0, "amount_subtotal": amount, "amount_tax": 0,
                "amount_total": amount, "currency": price["currency"], "description": price["product_data"]["name"],
                "quantity": each.get("quantity", 1),
            })
        )  # fmt: skip
    if sum(each["amount_total"] for each in items) < intents.MINIMUM_CENTS:
        raise ApiError(
            "The Checkout Session's total amount must convert to at least 50 cents.", code="amount_too_small"
        )
    return items


def _setup(sim: Simulation, given: dict[str, Any], customer: str | None) -> str:
    data = given.get("setup_intent_data") or {}
    setup = intents.create_setup(sim, {**data, **({"customer": customer} if customer else {})})
    return str(setup["id"])


def submit(sim: Simulation, session_id: str, token: str) -> Object:
    """The owner enters a card. Returns the session: complete, or open while 3D Secure waits. Raises ApiError (402)."""
    session = _open(sim, session_id)
    method = payment_methods.from_token(sim, token, "card")
    if session["mode"] == "setup":
        setup = intents.confirm_setup(sim, {"payment_method": method["id"]}, session["setup_intent"])
        return _finish(sim, session) if setup["status"] == "succeeded" else session
    if session["payment_intent"] is None:
        data = sim.store.hidden(session_id)["intent"]
        intent = intents.start(sim, data, session["customer"], session["amount_total"], session["currency"])
        session["payment_intent"] = intent["id"]
        sim.save(session)
    intent = intents.confirm(sim, {"payment_method": method["id"]}, session["payment_intent"])
    return _finish(sim, session) if intent["status"] == "succeeded" else session


def authenticate(sim: Simulation, session_id: str, *, confirmed: bool) -> Object:
    """The owner confirms in 3D Secure, or fails to. Raises ApiError (402)."""
    session = _open(sim, session_id)
    if session["mode"] == "setup":
        setup = sim.get("setup_intent", session["setup_intent"])
        if not confirmed:
            raise ApiError(
                "We are unable to authenticate your payment method.", status=402, kind="card_error",
                code="setup_intent_authentication_failure",
            )  # fmt: skip
        intents.confirm_setup(sim, {}, setup["id"], authenticated=True)
        return _finish(sim, session)
    intent = sim.get("payment_intent", session["payment_intent"])
    try:
        intents.authenticate(sim, intent, confirmed=confirmed)
    except Declined as declined:
        raise intents.refusal(sim, declined, intent["id"]) from declined
    return _finish(sim, session)


def _open(sim: Simulation, session_id: str) -> Object:
    session = sim.get("checkout.session", session_id)
    if session["status"] != "open":
        raise ApiError(f"This Checkout Session is {session['status']}; nothing can be paid on it.")
    return session


def _finish(sim: Simulation, session: Object) -> Object:
    session |= {"status": "complete", "url": None}
    if session["mode"] == "payment":
        session["payment_status"] = "paid"
    sim.save(session)
    sim.emit("checkout.session.completed", session)
    return session


def expire(sim: Simulation, given: dict[str, Any], session_id: str) -> Object:
    session = sim.get("checkout.session", session_id)
    if session["status"] != "open":
        raise ApiError(
            f'Only Checkout Sessions with a status in ["open"] can be expired. This one is {session["status"]}.',
            code="resource_invalid_state",
        )
    return end(sim, session)


def end(sim: Simulation, session: Object) -> Object:
    """Close a session that was not used."""
    session |= {"status": "expired", "url": None}
    sim.save(session)
    sim.emit("checkout.session.expired", session)
    return session


def open_portal(sim: Simulation, given: dict[str, Any]) -> Object:
    require(given, "customer")
    customer = sim.get("customer", given["customer"], "customer")["id"]
    fields = {"configuration": "bpc_simulated", "customer": customer, "return_url": given.get("return_url"), "url": ""}
    session = sim.create("billing_portal.session", "bps", fields, customer=customer)
    session["url"] = f"{sim.base_url}/portal/{session['id']}"
    return sim.save(session)
