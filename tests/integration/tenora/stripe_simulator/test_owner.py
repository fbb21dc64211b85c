"""What a card's owner, a bank and time do: Checkout, the portal, 3D Secure, disputes and expiries."""

import time

import httpx
import pytest
import stripe

DAY_S = 86_400
URLS = {"success_url": "http://127.0.0.1:1/done?s={CHECKOUT_SESSION_ID}", "cancel_url": "http://127.0.0.1:1/back"}
ALWAYS_3DS, VISA, DECLINED = "4000002760003184", "4242424242424242", "4000000000009995"


def customer(api, **given) -> str:
    return api.customers.create({"email": "ada@example.com", **given}).id


def top_up(api, owner: str, amount: int = 2_500):
    item = {
        "quantity": 1,
        "price_data": {"currency": "usd", "unit_amount": amount, "product_data": {"name": "Credits"}},
    }
    return api.checkout.sessions.create({"mode": "payment", "customer": owner, "line_items": [item], **URLS})


def types(api, owner: str) -> list[str]:
    events = [
        each for each in api.events.list({"limit": 100}).data if getattr(each.data.object, "customer", "") == owner
    ]
    return [each.type for each in events][::-1]


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
    assert types(api, owner) == [
        "payment_intent.created",
        "charge.failed",
        "payment_intent.payment_failed",
        "charge.succeeded",
        "payment_intent.succeeded",
        "checkout.session.completed",
    ]
    assert post(session.url, card=VISA).status_code == 400


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_card_that_wants_its_owner_asks_on_the_page(api, confirmed):
    session = top_up(api, customer(api))
    assert post(session.url, card=ALWAYS_3DS).headers["Location"] == session.url
    assert "3D Secure" in httpx.get(session.url).text
    answered = post(session.url, confirmed="yes" if confirmed else "no")
    assert answered.status_code == (303 if confirmed else 402)
    assert api.checkout.sessions.retrieve(session.id).status == ("complete" if confirmed else "open")


def test_a_card_is_saved_on_the_page_and_managed_in_the_portal(api):
    owner = customer(api)
    session = api.checkout.sessions.create({"mode": "setup", "customer": owner, "currency": "usd", **URLS})
    assert post(session.url, card=DECLINED).status_code == 402
    assert post(session.url, card=VISA).status_code == 303
    (saved,) = api.customers.payment_methods.list(owner).data
    portal = api.billing_portal.sessions.create({"customer": owner, "return_url": "http://127.0.0.1:1/"}).url
    assert "4242" in httpx.get(portal).text
    assert post(portal, do="add", card="5555555555554444").status_code == 303
    assert len(api.customers.payment_methods.list(owner).data) == 2
    assert post(portal, do="remove", method=saved.id).status_code == 303
    (left,) = api.customers.payment_methods.list(owner).data
    assert left.card.brand == "mastercard"
    assert api.customers.retrieve(owner).invoice_settings.default_payment_method == left.id


def test_what_a_page_shows_is_escaped(api):
    session = api.checkout.sessions.create(
        {
            "mode": "setup",
            "currency": "usd",
            "success_url": "http://127.0.0.1:1/",
            "cancel_url": "javascript:'><script>",
        }
    )
    page = httpx.get(session.url)
    assert "<script" not in page.text
    assert "javascript:" not in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_an_invoice_waits_for_3d_secure_and_is_paid_once(api, simulator):
    owner = customer(api)
    card = api.payment_methods.attach("pm_card_authenticationRequired", {"customer": owner})
    invoice = api.invoices.create({"customer": owner})
    api.invoice_items.create({"customer": owner, "invoice": invoice.id, "amount": 900})
    invoice = api.invoices.finalize_invoice(invoice.id)
    with pytest.raises(stripe.CardError) as waiting:
        api.invoices.pay(invoice.id, {"payment_method": card.id})
    assert waiting.value.code == "invoice_payment_intent_requires_action"
    (payment,) = api.invoice_payments.list({"invoice": invoice.id}).data
    intent = payment.payment.payment_intent
    assert f"/authenticate/{intent}" in httpx.get(invoice.hosted_invoice_url).text
    assert post(f"{simulator.url}/authenticate/{intent}", confirmed="yes").status_code == 303
    assert api.invoices.retrieve(invoice.id).status == "paid"
    assert post(f"{simulator.url}/authenticate/{intent}", confirmed="yes").status_code == 400
    assert types(api, owner).count("invoice.paid") == 1


def test_a_saved_card_may_begin_to_decline(api, simulator):
    owner = customer(api)
    card = api.payment_methods.attach("pm_card_visa", {"customer": owner})
    charge = {"amount": 500, "currency": "usd", "customer": owner, "payment_method": card.id, "confirm": True}
    assert api.payment_intents.create(charge).status == "succeeded"
    simulator.control("POST", f"payment_methods/{card.id}", {"card": "pm_card_visa_chargeDeclinedLostCard"})
    with pytest.raises(stripe.CardError) as declined:
        api.payment_intents.create({**charge, "off_session": True})
    assert declined.value.error.decline_code == "lost_card"
    assert declined.value.error.payment_intent.status == "requires_payment_method"


@pytest.mark.parametrize("status", ["won", "lost"])
def test_a_disputed_charge_cannot_be_refunded(api, simulator, status):
    owner = customer(api)
    intent = api.payment_intents.create(
        {
            "amount": 500,
            "currency": "usd",
            "customer": owner,
            "payment_method": "pm_card_createDispute",
            "confirm": True,
        }
    )
    (dispute,) = api.disputes.list({"payment_intent": intent.id}).data
    assert (dispute.status, dispute.amount) == ("needs_response", 500)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        api.refunds.create({"payment_intent": intent.id})
    assert refused.value.code == "charge_disputed"
    simulator.control("POST", f"disputes/{dispute.id}", {"status": status})
    assert api.disputes.retrieve(dispute.id).status == status


def test_a_session_expires_on_a_test_clock_and_real_time_moves_nothing(api):
    now = int(time.time())
    clock = api.test_helpers.test_clocks.create({"frozen_time": now})
    session = top_up(api, customer(api, test_clock=clock.id))
    assert session.expires_at == now + DAY_S
    api.test_helpers.test_clocks.advance(clock.id, {"frozen_time": now + DAY_S - 1})
    assert api.checkout.sessions.retrieve(session.id).status == "open"
    api.test_helpers.test_clocks.advance(clock.id, {"frozen_time": now + DAY_S})
    assert api.checkout.sessions.retrieve(session.id).status == "expired"
    assert api.test_helpers.test_clocks.retrieve(clock.id).status == "ready"
    assert time.time() - now < 60
