"""The page that a card's owner would see at Stripe, for Checkout and for the portal: a choice of test cards, or the
question of 3D Secure. Plain HTML without scripts, labelled as the simulator's.
"""

from html import escape
from typing import Annotated, Final
from urllib.parse import urlsplit

from litestar import Response, get, post
from litestar.enums import RequestEncodingType
from litestar.params import Body

from tenora.stripe_simulator import checkout
from tenora.stripe_simulator.cards import CARDS
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.simulation import Simulation

LABEL: Final = "Stripe simulator: no real money"
_Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]
_STYLE: Final = "body{font:16px system-ui;max-width:34rem;margin:3rem auto}strong{color:#b00}"
_OPTIONS: Final = "".join(f"<option value={card.number}>{card.number} {name}</option>" for name, card in CARDS.items())
_CARDS: Final = f"<form method=post><select name=card>{_OPTIONS}</select> <button>Use this card</button></form>"
_QUESTION: Final = (
    "<p>The bank asks the card's owner to confirm (3D Secure).</p><form method=post>"
    "<button name=confirmed value=yes>Confirm</button> <button name=confirmed value=no>Fail</button></form>"
)


def _html(title: str, content: str, back: str | None = None, status: int = 200) -> Response[str]:
    link = f"<p><a href='{escape(back)}'>Back</a></p>" if back and urlsplit(back).scheme in ("http", "https") else ""
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)} - {LABEL}</title>"
        f"<style>{_STYLE}</style><p><strong>{LABEL}</strong></p><h1>{escape(title)}</h1>{content}{link}"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    return Response(text, media_type="text/html", status_code=status, headers={"Content-Security-Policy": policy})


@get("/{kind:str}/{session_id:str}")
async def show(kind: str, session_id: str, sim: Simulation) -> Response[str]:
    """The page of a session."""
    if kind == "portal":
        session = sim.get("billing_portal.session", session_id)
        saved = sim.store.select("payment_method", customer=session["customer"])
        rows = [f"<p>{escape(each['card']['brand'])} **** {escape(each['card']['last4'])}</p>" for each in saved]
        return _html("Your cards", "".join(rows) + _CARDS, session["return_url"])
    session = sim.get("checkout.session", session_id)
    if session["status"] != "open":
        return _html(f"This session is {session['status']}", "")
    cents = session["amount_total"]
    title = "Save a card" if cents is None else f"Pay {cents // 100}.{cents % 100:02d} {session['currency'].upper()}"
    return _html(title, _QUESTION if checkout.waiting(sim, session) else _CARDS, session["cancel_url"])


@post("/{kind:str}/{session_id:str}")
async def use(kind: str, session_id: str, data: _Form, sim: Simulation) -> Response[str]:
    """Do what the owner chose, and lead on."""
    card, confirmed = data.get("card", ""), data["confirmed"] == "yes" if "confirmed" in data else None
    try:
        if kind == "portal":
            session = sim.run(lambda sim: checkout.use_portal(sim, session_id, card))
        else:
            session = sim.run(lambda sim: checkout.act(sim, session_id, card=card, confirmed=confirmed))
    except ApiError as error:
        return _html("Refused", f"<p>{escape(str(error))}</p><p><a href=''>Try again</a></p>", status=error.status)
    to = session["url"] or session["success_url"].replace("{CHECKOUT_SESSION_ID}", session_id)
    return Response("", status_code=303, headers={"Location": to})
