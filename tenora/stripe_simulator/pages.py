"""The pages that a card's owner would see at Stripe: Checkout, the portal, an invoice, and 3D Secure.

Plain HTML without scripts. Each is labelled as the simulator's, and takes test cards only.
"""

from html import escape
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from litestar import Response, get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body

from tenora.stripe_simulator import checkout, customers, intents, invoices, payment_methods
from tenora.stripe_simulator.cards import CARDS
from tenora.stripe_simulator.control import Control
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.simulation import Object, Simulation

LABEL: Final = "Stripe simulator: no real money"
_Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]
_STYLE: Final = "body{font:16px system-ui;max-width:34rem;margin:3rem auto}strong{color:#b00}"


def _html(title: str, *parts: str, status: int = 200) -> Response[str]:
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)} - {LABEL}</title>"
        f"<style>{_STYLE}</style><p><strong>{LABEL}</strong></p><h1>{escape(title)}</h1>{''.join(parts)}"
    )
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    }
    return Response(text, media_type="text/html", status_code=status, headers=headers)


def _redirect(url: str) -> Response[str]:
    return Response("", status_code=303, headers={"Location": url})


def _refused(error: ApiError) -> Response[str]:
    return _html("Refused", f"<p>{escape(str(error))}</p><p><a href=''>Try again</a></p>", status=error.status)


def _card_form(action: str, **hidden: str) -> str:
    options = "".join(
        f"<option value='{escape(card.number)}'>{escape(card.number)} {escape(name)}</option>"
        for name, card in CARDS.items()
    )
    fields = "".join(f"<input type=hidden name={name} value='{escape(value)}'>" for name, value in hidden.items())
    return f"<form method=post>{fields}<select name=card>{options}</select> <button>{escape(action)}</button></form>"


def _answer_form() -> str:
    return (
        "<p>The bank asks the card's owner to confirm (3D Secure).</p><form method=post>"
        "<button name=confirmed value=yes>Confirm</button> <button name=confirmed value=no>Fail</button></form>"
    )


def _price(amount: int | None, currency: str | None) -> str:
    return f"{(amount or 0) // 100}.{(amount or 0) % 100:02d} {escape((currency or '').upper())}"


def _waits(sim: Simulation, session: Object) -> bool:
    kind, name = ("setup_intent", session["setup_intent"])
    if session["mode"] == "payment":
        kind, name = ("payment_intent", session["payment_intent"])
    return name is not None and sim.get(kind, name)["status"] == "requires_action"


@get("/checkout/{session_id:str}")
async def show_checkout(session_id: str, control: Control) -> Response[str]:
    sim = Simulation(control.store, control.base_url)
    session = sim.get("checkout.session", session_id)
    if session["status"] != "open":
        return _html(f"This session is {session['status']}")
    price = f"<p>{_price(session['amount_total'], session['currency'])}</p>" if session["mode"] == "payment" else ""
    form = _answer_form() if _waits(sim, session) else _card_form("Pay" if price else "Save card")
    back = session["cancel_url"]
    return _html("Checkout", price, form, f"<p><a href='{escape(back)}'>Cancel</a></p>" if _is_web(back) else "")


@post("/checkout/{session_id:str}", status_code=303)
async def use_checkout(session_id: str, data: _Form, control: Control) -> Response[str]:
    def act(sim: Simulation) -> Object:
        if "confirmed" in data:
            return checkout.authenticate(sim, session_id, confirmed=data["confirmed"] == "yes")
        return checkout.submit(sim, session_id, data.get("card", ""))

    try:
        session = control.run(act)
    except ApiError as error:
        return _refused(error)
    if session["status"] != "complete":
        return _redirect(f"{control.base_url}/checkout/{session_id}")
    return _redirect(session["success_url"].replace("{CHECKOUT_SESSION_ID}", session_id))


def _is_web(url: str | None) -> bool:
    return url is not None and urlsplit(url).scheme in ("http", "https")


@get("/portal/{session_id:str}")
async def show_portal(session_id: str, control: Control) -> Response[str]:
    sim = Simulation(control.store, control.base_url)
    session = sim.get("billing_portal.session", session_id)
    owner = sim.get("customer", session["customer"], "customer")
    default = owner["invoice_settings"]["default_payment_method"]
    rows = [
        f"<form method=post><input type=hidden name=method value='{escape(each['id'])}'>"
        f"{escape(each['card']['brand'])} **** {escape(each['card']['last4'])}"
        f"{' (default)' if each['id'] == default else ''} <button name=do value=default>Use</button>"
        " <button name=do value=remove>Remove</button></form>"
        for each in sim.store.select("payment_method", customer=owner["id"])
    ]
    back = session["return_url"]
    link = f"<p><a href='{escape(back)}'>Back</a></p>" if _is_web(back) else ""
    return _html("Payment methods", *rows, _card_form("Add card", do="add"), link)


@post("/portal/{session_id:str}", status_code=303)
async def use_portal(session_id: str, data: _Form, control: Control) -> Response[str]:
    def act(sim: Simulation) -> None:
        customer = sim.get("billing_portal.session", session_id)["customer"]
        what, method = data.get("do"), data.get("method", "")
        if what == "add":
            made = payment_methods.from_token(sim, data.get("card", ""), "card")
            setup = intents.create_setup(sim, {"customer": customer, "payment_method": made["id"], "confirm": True})
            method = made["id"] if setup["status"] == "succeeded" else ""
        if what == "remove":
            payment_methods.detach(sim, {}, method)
        elif method:
            settings: dict[str, Any] = {"invoice_settings": {"default_payment_method": method}}
            customers.update(sim, settings, customer)

    try:
        control.run(act)
    except ApiError as error:
        return _refused(error)
    return _redirect(f"{control.base_url}/portal/{session_id}")


@get("/invoice/{invoice_id:str}")
async def show_invoice(invoice_id: str, control: Control) -> Response[str]:
    sim = Simulation(control.store, control.base_url)
    invoice = sim.get("invoice", invoice_id)
    payment = invoices.payment_of(sim, invoice)
    link = ""
    if invoice["status"] == "open" and payment is not None:
        intent = sim.get("payment_intent", payment["payment"]["payment_intent"])
        if intent["status"] == "requires_action":
            link = f"<p><a href='/authenticate/{escape(intent['id'])}'>Confirm the payment</a></p>"
    due = f"<p>{escape(invoice['status'])}, due {_price(invoice['amount_remaining'], invoice['currency'])}</p>"
    return _html(f"Invoice {invoice['number'] or invoice_id}", due, link)


@get("/authenticate/{intent_id:str}")
async def show_authentication(intent_id: str, control: Control) -> Response[str]:
    intent = Simulation(control.store, control.base_url).get("payment_intent", intent_id)
    if intent["status"] != "requires_action":
        return _html(f"This payment is {intent['status'].replace('_', ' ')}")
    return _html("Confirm the payment", f"<p>{_price(intent['amount'], intent['currency'])}</p>", _answer_form())


@post("/authenticate/{intent_id:str}", status_code=303)
async def answer_authentication(intent_id: str, data: _Form, control: Control) -> Response[str]:
    confirmed = data.get("confirmed") == "yes"
    try:
        control.run(lambda sim: invoices.authenticate(sim, intent_id, confirmed=confirmed))
    except ApiError as error:
        return _refused(error)
    return _redirect(f"{control.base_url}/authenticate/{intent_id}")


ROUTES = (
    show_checkout, use_checkout, show_portal, use_portal, show_invoice, show_authentication, answer_authentication,
)  # fmt: skip
