"""The simulator as a process, the official SDK, and a receiver of webhooks on loopback."""

from collections.abc import Iterator

import pytest
import stripe

from tests.fixtures.notifications.receivers import WebhookReceiver, webhook_receiver
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator, shapes_checked

SECRET = "whsec_of_both_sides"


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as received:
        yield received


def types_at(receiver: WebhookReceiver, secret: str = SECRET) -> list[str]:
    """The types of the events that arrived, each verified by the SDK."""
    return [
        stripe.Webhook.construct_event(each.body, each.headers["stripe-signature"], secret).type
        for each in receiver.received
    ]


@pytest.fixture(scope="session")
def simulator(tmp_path_factory) -> Iterator[RunningSimulator]:
    with running_simulator(tmp_path_factory.mktemp("stripe") / "home") as simulator:
        yield simulator


@pytest.fixture
def api(simulator) -> Iterator:
    with shapes_checked():
        yield simulator.sdk().v1


@pytest.fixture
def listening(simulator, receiver) -> Iterator[None]:
    """The receiver gets the events of customers while the test runs."""
    types = ["customer.created", "customer.updated", "customer.deleted"]
    simulator.control("POST", "listener", {"url": receiver.url, "secrets": [SECRET], "types": types})
    yield
    simulator.control("DELETE", "listener")
    simulator.control("POST", "delivery", {})
