"""The simulator's process: labelled, on loopback, its state on disk, and closed to live keys and to a second writer."""

import subprocess
import sys

import httpx
import pytest
import stripe

from tenora.stack.program import free_port
from tests.conftest import wait_until
from tests.fixtures.stripe_simulator import TEST_KEY, running_simulator
from tests.integration.tenora.stripe_simulator.conftest import SECRET, types_at

HEADERS = {"Authorization": f"Bearer {TEST_KEY}"}


def test_a_second_simulator_on_the_same_folder_is_refused(simulator):
    command = (sys.executable, "-m", "tenora.stripe_simulator", "--port", str(free_port()), "--home", simulator.home)
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert "another Stripe simulator runs" in second.stderr


def test_the_listener_of_the_command_line_gets_events_with_the_secret_that_it_knows(tmp_path, receiver, monkeypatch):
    monkeypatch.setenv("TENORA_STRIPE_WEBHOOK_SECRET", SECRET)
    with running_simulator(tmp_path / "home", listener=receiver.url) as simulator:
        simulator.sdk().v1.customers.create({"name": "Ada"})
        wait_until(lambda: receiver.received)
    assert types_at(receiver) == ["customer.created"]


def test_every_answer_is_labelled(simulator):
    for path in ("/v1/customers", "/v1/nothing", "/_simulator/status", "/_simulator/nothing", "/checkout/nothing"):
        answer = httpx.get(simulator.url + path, headers=HEADERS)
        assert answer.headers["Tenora-Stripe-Simulator"] == "1", path
    assert httpx.get(f"{simulator.url}/_simulator/status").json()["simulator"] is True


@pytest.mark.parametrize(
    ("key", "says"),
    [("sk_live_0123456789", "no real money"), ("pk_test_0123456789", "Invalid API Key"), ("x", "Invalid")],
)
def test_only_test_keys_are_accepted(simulator, key, says):
    with pytest.raises(stripe.AuthenticationError, match=says):
        simulator.sdk(key).v1.customers.list()


def test_without_a_key_nothing_is_answered(simulator):
    assert httpx.get(f"{simulator.url}/v1/customers").status_code == 401


def test_another_api_version_is_refused(simulator):
    answer = httpx.get(f"{simulator.url}/v1/customers", headers={**HEADERS, "Stripe-Version": "2020-08-27"})
    assert answer.status_code == 400
    assert stripe.api_version in answer.json()["error"]["message"]


def test_a_call_that_tenora_does_not_make_is_refused(api):
    with pytest.raises(stripe.InvalidRequestError, match="Unrecognized request URL"):
        api.subscriptions.list()
    with pytest.raises(stripe.InvalidRequestError) as refused:
        api.customers.create({"next_invoice_sequence": 7})
    assert (refused.value.code, refused.value.param) == ("parameter_unknown", "next_invoice_sequence")


def test_a_body_over_the_limit_is_refused(simulator):
    answer = httpx.post(f"{simulator.url}/v1/customers", headers=HEADERS, content="name=" + "x" * 1_100_000)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("clock", {"advance_s": -1}),
        ("clock", {"advance_s": "x"}),
        ("faults", {"kind": "explode"}),
        ("faults", {"kind": "rate_limit", "times": 0}),
        ("faults", {"kind": "rate_limit", "path": "/x"}),
        ("delivery", {"copies": 11}),
        ("delivery", {"colour": "red"}),
        ("delivery", "no object"),
    ],
)
def test_a_wrong_control_is_refused(simulator, path, body):
    assert httpx.post(f"{simulator.url}/_simulator/{path}", json=body).status_code == 400


def test_pages_of_a_list_lead_to_its_end(api):
    owner = api.customers.create({}).id
    made = [api.payment_methods.attach("pm_card_visa", {"customer": owner}).id for _ in range(5)][::-1]

    def page(**given) -> tuple[list[str], bool]:
        listed = api.customers.payment_methods.list(owner, {"limit": 2, **given})
        return [each.id for each in listed.data], listed.has_more

    assert page() == (made[:2], True)
    assert page(starting_after=made[1]) == (made[2:4], True)
    assert page(starting_after=made[3]) == (made[4:], False)
    assert api.charges.list({"created": {"lte": 1}}).data == []
    with pytest.raises(stripe.InvalidRequestError, match="No such payment method"):
        page(starting_after="pm_that_never_was")
    with pytest.raises(stripe.InvalidRequestError, match="limit"):
        page(limit=101)
