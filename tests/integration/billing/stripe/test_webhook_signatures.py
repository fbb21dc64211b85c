"""Which webhooks our client believes: those that the simulator signs with a secret that we know, within their time."""

import json
import time
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr

from billing.stripe.client import event_from_webhook
from billing.stripe.objects import StripeEvent
from billing.stripe.settings import StripeSettings
from core.errors import InvalidRequest
from tenora.stripe_simulator.webhooks import signature_header

SECRET, OLD, WRONG = "whsec_of_the_endpoint", "whsec_of_last_month", "whsec_of_a_stranger"
EVENT = {
    "id": "evt_1",
    "object": "event",
    "api_version": "2026-10-28.endive",
    "created": 1_800_000_000,
    "data": {"object": {"id": "in_1", "object": "invoice", "customer": "cus_1"}},
    "livemode": False,
    "pending_webhooks": 1,
    "request": None,
    "type": "invoice.paid",
}
BODY = json.dumps(EVENT)


def read(body: bytes, signature: str | None, **changes) -> StripeEvent:
    """As the web process does, which has no key."""
    secrets = {"stripe_webhook_secret": SecretStr(SECRET), "stripe_webhook_secret_previous": SecretStr(OLD)}
    return event_from_webhook(StripeSettings(**secrets | changes), body, signature)


def signed(*secrets: str, body: str = BODY, age_s: int = 0) -> str:
    return signature_header(body, list(secrets), int(time.time()) - age_s)


@pytest.mark.scenario(150)
@pytest.mark.scenario(151)
@pytest.mark.parametrize(
    ("secrets", "age_s"),
    [((SECRET,), 0), ((OLD,), 0), ((WRONG, SECRET), 0), ((SECRET,), 290)],
    ids=["current secret", "previous secret", "two signatures, one of ours", "290 s old"],
)
def test_a_signature_of_ours_is_accepted(secrets, age_s):
    event = read(BODY.encode(), signed(*secrets, age_s=age_s))
    assert (event.id, event.type, event.object_id, event.object_kind) == ("evt_1", "invoice.paid", "in_1", "invoice")
    assert (event.customer, event.created_at) == ("cus_1", datetime.fromtimestamp(1_800_000_000, UTC))


@pytest.mark.scenario(150)
@pytest.mark.parametrize(
    ("body", "header"),
    [
        (BODY, None),
        (BODY, ""),
        (BODY, "t=1,v1="),
        (BODY, "nonsense"),
        (BODY, "t=soon,v1=00"),
        (BODY, "t=99999999999999999999,v1=00"),
        (BODY, "t=1,v1=" + "0" * 9_000),
        (BODY, signed(WRONG)),
        (BODY.replace("cus_1", "cus_2"), signed(SECRET)),
        (BODY, signed(SECRET, age_s=301)),
        (BODY, signed(SECRET).replace("v1", "v0")),
    ],
    ids=[
        "none",
        "empty",
        "no digest",
        "nonsense",
        "no time",
        "far future",
        "long",
        "wrong secret",
        "altered",
        "301 s old",
        "other scheme",
    ],
)
def test_any_other_signature_is_refused_before_the_body_is_read(body, header):
    with pytest.raises(InvalidRequest) as refused:
        read(body.encode(), header)
    assert (refused.value.code, refused.value.param) == ("stripe_signature_invalid", "Stripe-Signature")
    assert "TENORA_STRIPE_WEBHOOK_SECRET" in refused.value.message


@pytest.mark.parametrize(
    "body",
    [
        "", "[]", "null", "{", '{"object": "event"}', '{"object": "v2.core.event"}', '"x"',
        {"id": None}, {"id": 7}, {"id": "evt_\0"}, {"type": None}, {"created": "soon"}, {"created": 10**20},
        {"created": -(10**20)}, {"data": None}, {"data": {}}, {"data": {"object": {}}}, {"data": {"object": [1]}},
        {"api_version": 3}, {"livemode": None},
    ],
)  # fmt: skip
def test_a_signed_body_that_is_no_event_is_refused(body):
    text = body if isinstance(body, str) else json.dumps(EVENT | body)
    with pytest.raises(InvalidRequest) as refused:
        read(text.encode(), signed(SECRET, body=text))
    assert refused.value.code in ("stripe_event_malformed", "stripe_mode_mismatch")


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(InvalidRequest):
        read(b"\xff\xfe", signed(SECRET))


@pytest.mark.parametrize(
    ("settings", "livemode"),
    [
        ({}, True),
        ({"stripe_mode": "live"}, False),
        ({"stripe_api_key": SecretStr("sk_test_0123456789"), "stripe_mode": "live"}, True),
        ({"stripe_api_key": SecretStr("sk_live_0123456789")}, False),
    ],
)
def test_an_event_of_the_other_mode_is_refused(settings, livemode):
    body, own = (json.dumps({**EVENT, "livemode": mode}) for mode in (livemode, not livemode))
    with pytest.raises(InvalidRequest) as refused:
        read(body.encode(), signed(SECRET, body=body), **settings)
    assert (refused.value.code, refused.value.param) == ("stripe_mode_mismatch", "livemode")
    assert read(own.encode(), signed(SECRET, body=own), **settings).id == "evt_1"


def test_without_a_secret_every_webhook_is_refused():
    bare = StripeSettings(stripe_api_key=SecretStr("sk_test_0123456789"))
    with pytest.raises(InvalidRequest) as refused:
        event_from_webhook(bare, BODY.encode(), signed(SECRET))
    assert refused.value.code == "stripe_webhook_secret_missing"


def test_an_old_signature_is_refused_for_its_age_and_not_for_its_secret():
    with pytest.raises(InvalidRequest, match="outside the tolerance"):
        read(BODY.encode(), signed(SECRET, age_s=301))
