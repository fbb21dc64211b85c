"""What our client sees when Stripe limits, fails or hangs, and how a lost answer is found again.

Against the simulator only: Stripe does not fail on demand.
"""

import pytest

from billing.stripe.client import StripeAccount
from billing.stripe.errors import StripeLookupInconclusive, StripeUnavailable
from tenora.stack.program import free_port
from tests.fixtures.stripe_simulator import RunningSimulator
from tests.integration.billing.stripe.conftest import StripeStage, settings_of


@pytest.fixture
def failing(simulator):
    yield simulator
    simulator.control("DELETE", "faults")


@pytest.fixture
def stage(failing) -> StripeStage:
    return StripeStage(StripeAccount(settings_of(failing)), failing.sdk())


def fail(simulator, kind: str, path: str = "/v1/payment_intents", **options) -> None:
    simulator.control("POST", "faults", {"kind": kind, "path": path, **options})


def test_a_lookup_that_would_read_too_much_is_inconclusive(stage, simulator):
    customer = stage.customer()
    for _ in range(11):
        stage.charge(customer)
    bounded = StripeAccount(settings_of(simulator, stripe_lookup_objects_max=10))
    with pytest.raises(StripeLookupInconclusive, match="more than 10"):
        bounded.find_payment(our_id=stage.our_id(), customer_id=customer, **stage.just_now())


def test_an_unreachable_stripe_is_unavailable(tmp_path):
    gone = RunningSimulator(f"http://127.0.0.1:{free_port()}", tmp_path)  # nothing listens there
    with pytest.raises(StripeUnavailable):
        StripeAccount(settings_of(gone)).payment("pi_1")
