"""What a card's owner, a bank and time do: the page of Checkout and the portal, 3D Secure, disputes and expiries."""

import time

import httpx
import pytest
import stripe

DAY_S = 86_400
URLS = {"success_url": "http://127.0.0.1:1/done?s={CHECKOUT_SESSION_ID}", "cancel_url": "http://127.0.0.1:1/back"}
ALWAYS_3DS, VISA, DECLINED = "4000002760003184", "4242424242424242", "4000000000009995"


def customer(api, **given) -> str:
    return api.customers.create({"email": "ada@example.com", **given}).id


def charge(api, owner: str, card: str):
    """Save a card and charge it."""
    saved = api.payment_methods.attach(card, {"customer": owner}).id
    wanted = {"amount": 500, "currency": "usd", "customer": owner, "payment_method": saved}
    wanted |= {"confirm": True, "off_session": True}
    return api.payment_intents.create(wanted)


def top_up(api, owner: str):
    price = {"currency": "usd", "unit_amount": 2_500, "product_data": {"name": "Credits"}}
    items = [{"quantity": 1, "price_data": price}]
    return api.checkout.sessions.create({"mode": "payment", "customer": owner, "line_items": items, **URLS})


def post(url: str, **form: str) -> httpx.Response:
    return httpx.post(url, data=form, follow_redirects=False)


def test_a_top_up_is_paid_on_the_page(api):
    owner = customer(api)
    session = top_up(api, owner)
    page = httpx.get(session.url)
    assert "Stripe simulator: no real money" in page.text
    assert "25.00 USD" in page.text
    declined = post(session.url, card=DECLINED)
    assert (declined.status_code, api.checkout.sessions.retrieve(session.id).status) == (402, "open")
    assert "insufficient funds" in declined.text
    paid = post(session.url, card=VISA)
    assert (paid.status_code, paid.headers["Location"]) == (303, f"http://127.0.0.1:1/done?s={session.id}")
    done = api.checkout.sessions.retrieve(session.id)
    assert (done.status, done.payment_status, done.url) == ("complete", "paid", None)
    assert api.payment_intents.retrieve(done.payment_intent).amount_received == 2_500
    events = api.events.list({"limit": 100}).data
    assert [each.type for each in events if getattr(each.data.object, "customer", "") == owner][::-1] == [
        "payment_intent.created",
        "charge.failed",
        "payment_intent.payment_failed",
        "charge.succeeded",
        "payment_intent.succeeded",
        "checkout.session.completed",
    ]
    assert post(session.url, card=VISA).status_code == 400


@pytest.mark.parametrize("mode", ["payment", "setup"])
@pytest.mark.parametrize("confirmed", [True, False])
def test_a_card_that_wants_its_owner_asks_on_the_page(api, mode, confirmed):
    owner = customer(api)
    setup = {"mode": "setup", "customer": owner, "currency": "usd", **URLS}
    session = top_up(api, owner) if mode == "payment" else api.checkout.sessions.create(setup)
    assert post(session.url, card=ALWAYS_3DS).headers["Location"] == session.url
    assert "3D Secure" in httpx.get(session.url).text
    answered = post(session.url, confirmed="yes" if confirmed else "no")
    assert answered.status_code == (303 if confirmed else 402)
    assert api.checkout.sessions.retrieve(session.id).status == ("complete" if confirmed else "open")


def test_a_card_is_saved_on_the_page_and_another_one_in_the_portal(api):
    owner = customer(api)
    session = api.checkout.sessions.create({"mode": "setup", "customer": owner, "currency": "usd", **URLS})
    assert post(session.url, card=DECLINED).status_code == 402
    assert post(session.url, card=VISA).status_code == 303
    (saved,) = api.customers.payment_methods.list(owner).data
    assert api.setup_intents.retrieve(session.setup_intent).payment_method == saved.id
    portal = api.billing_portal.sessions.create({"customer": owner, "return_url": "http://127.0.0.1:1/"}).url
    assert "4242" in httpx.get(portal).text
    assert post(portal, card="5555555555554444").headers["Location"] == portal
    added, _ = api.customers.payment_methods.list(owner).data
    assert api.customers.retrieve(owner).invoice_settings.default_payment_method == added.id


def test_what_a_page_shows_is_escaped(api):
    urls = {"success_url": "http://127.0.0.1:1/", "cancel_url": "javascript:'><script>"}
    session = api.checkout.sessions.create({"mode": "setup", "customer": customer(api), "currency": "usd", **urls})
    page = httpx.get(session.url)
    assert "<script" not in page.text
    assert "javascript:" not in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_a_disputed_charge_cannot_be_refunded(api, simulator):
    intent = charge(api, customer(api), "pm_card_createDispute")
    (dispute,) = api.disputes.list({"payment_intent": intent.id}).data
    assert (dispute.status, dispute.amount) == ("needs_response", 500)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        api.refunds.create({"payment_intent": intent.id})
    assert refused.value.code == "charge_disputed"
    simulator.control("POST", f"disputes/{dispute.id}", {"status": "lost"})
    assert api.disputes.retrieve(dispute.id).status == "lost"


@pytest.mark.scenario(146)
def test_a_session_expires_on_a_test_clock_and_real_time_moves_nothing(api):
    now = int(time.time())
    clock = api.test_helpers.test_clocks.create({"frozen_time": now})
    session = top_up(api, customer(api, test_clock=clock.id))
    assert session.expires_at == now + DAY_S
    for moment, status in ((now + DAY_S - 1, "open"), (now + DAY_S, "expired")):
        api.test_helpers.test_clocks.advance(clock.id, {"frozen_time": moment})
        assert api.checkout.sessions.retrieve(session.id).status == status
    assert api.test_helpers.test_clocks.retrieve(clock.id).status == "ready"
    assert time.time() - now < 60
    with pytest.raises(stripe.InvalidRequestError, match="past"):
        api.test_helpers.test_clocks.advance(clock.id, {"frozen_time": now})
