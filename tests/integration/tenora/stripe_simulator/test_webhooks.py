"""Events are posted with signatures that the SDK accepts; they can be doubled, held back, reordered and repeated."""

import json

import httpx
import pytest
import stripe

from tests.conftest import wait_until
from tests.integration.tenora.stripe_simulator.conftest import SECRET, types_at


def change(api) -> str:
    customer = api.customers.create({"name": "Ada"}).id
    api.customers.update(customer, {"name": "Grace"})
    api.customers.delete(customer)
    return customer


IN_ORDER = ["customer.created", "customer.updated", "customer.deleted"]


@pytest.mark.scenario(150)
def test_events_are_posted_signed_in_order(api, listening, receiver):
    customer = change(api)
    wait_until(lambda: len(receiver.received) == 3)
    assert types_at(receiver) == IN_ORDER
    bodies = [json.loads(each.body) for each in receiver.received]
    assert [body["data"]["object"]["id"] for body in bodies] == [customer] * 3
    assert bodies[1]["request"]["id"].startswith("req_")
    assert not any(body["livemode"] for body in bodies)


def test_events_can_be_doubled_and_reversed(api, listening, receiver, simulator):
    simulator.control("POST", "delivery", {"paused": True, "copies": 2, "order": "reversed"})
    change(api)
    assert simulator.control("GET", "status")["waiting_deliveries"] == 6
    assert simulator.control("POST", "delivery/send") == {"accepted": 6}
    assert types_at(receiver) == [kind for kind in IN_ORDER[::-1] for _ in range(2)]


def test_a_refused_event_is_posted_again(api, listening, receiver):
    receiver.status = 500
    api.customers.create({"name": "Ada"})
    wait_until(lambda: receiver.received)
    receiver.status = 200
    wait_until(lambda: len(receiver.received) >= 2)
    assert receiver.received[0].body == receiver.received[1].body


@pytest.mark.scenario(151)
def test_during_a_rotation_both_secrets_verify(api, listening, receiver, simulator):
    simulator.control("POST", "listener", {"url": receiver.url, "secrets": ["whsec_new", SECRET]})
    change(api)
    wait_until(lambda: len(receiver.received) == 3)
    assert types_at(receiver, "whsec_new") == types_at(receiver) == IN_ORDER
    receiver.received.clear()
    simulator.control("POST", "listener", {"url": receiver.url, "secrets": ["whsec_new"]})
    change(api)
    wait_until(lambda: len(receiver.received) == 3)
    with pytest.raises(stripe.SignatureVerificationError):
        types_at(receiver)


def test_other_types_than_the_listeners_are_not_posted(api, listening, receiver, simulator):
    simulator.control("POST", "listener", {"url": receiver.url, "secrets": [SECRET], "types": ["customer.deleted"]})
    simulator.control("POST", "delivery", {"paused": True})
    change(api)
    assert simulator.control("GET", "status")["waiting_deliveries"] == 1


@pytest.mark.parametrize("url", ["http://example.com/hook", "http://169.254.169.254/", "ftp://127.0.0.1/", "x"])
def test_the_simulator_posts_to_loopback_only(simulator, url):
    refused = httpx.post(f"{simulator.url}/_simulator/listener", json={"url": url, "secrets": [SECRET]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "url_invalid")
