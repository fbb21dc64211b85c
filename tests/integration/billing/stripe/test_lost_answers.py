"""What our client sees when Stripe limits, fails or hangs, and how a lost answer is found again.

Against the simulator only: Stripe does not fail on demand.
"""

import pytest
import stripe

from billing.stripe.client import StripeAccount
from billing.stripe.errors import StripeCardDeclined, StripeLookupInconclusive, StripeUnavailable
from tenora.stack.program import free_port
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator
from tests.integration.billing.stripe.conftest import StripeStage, settings_of

DAY_S = 86_400


@pytest.fixture
def failing(simulator):
    yield simulator
    simulator.control("DELETE", "faults")


@pytest.fixture
def stage(failing) -> StripeStage:
    return StripeStage(StripeAccount(settings_of(failing)), failing.sdk())


@pytest.fixture
def impatient(failing) -> StripeAccount:
    """Gives up before a fault's two seconds are over."""
    return StripeAccount(settings_of(failing, stripe_read_timeout_s=1))


def fail(simulator, kind: str, path: str = "/v1/payment_intents", **options) -> None:
    simulator.control("POST", "faults", {"kind": kind, "path": path, **options})


def payments_of(stage, customer: str) -> list[str]:
    return [each.id for each in stage.sdk.v1.payment_intents.list({"customer": customer}).data]


def test_a_limited_request_is_not_executed_and_its_key_is_not_used_up(stage, failing):
    customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
    fail(failing, "rate_limit")
    with pytest.raises(StripeUnavailable) as limited:
        stage.charge(customer, our_id=our_id, key=key)
    assert (limited.value.retryable, limited.value.replayed) == (True, False)
    made = stage.charge(customer, our_id=our_id, key=key)
    assert payments_of(stage, customer) == [made.id]


@pytest.mark.scenario(133)
def test_a_lost_answer_is_given_again_for_the_same_key(stage, failing, impatient):
    customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
    fail(failing, "timeout_after", seconds=2)
    with pytest.raises(StripeUnavailable):
        stage.charge(customer, our_id=our_id, key=key, account=impatient)
    again = stage.charge(customer, our_id=our_id, key=key)
    assert payments_of(stage, customer) == [again.id]


def test_a_timeout_before_execution_changes_nothing(stage, failing, impatient):
    customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
    fail(failing, "timeout_before", seconds=2)
    with pytest.raises(StripeUnavailable):
        stage.charge(customer, our_id=our_id, key=key, account=impatient)
    assert payments_of(stage, customer) == []
    made = stage.charge(customer, our_id=our_id, key=key)
    assert payments_of(stage, customer) == [made.id]


@pytest.mark.scenario(135)
@pytest.mark.parametrize("kind", ["error_before", "error_after"])
def test_a_stored_500_is_replayed_and_only_a_lookup_tells_what_happened(stage, failing, kind):
    customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
    fail(failing, kind)
    with pytest.raises(StripeUnavailable) as first:
        stage.charge(customer, our_id=our_id, key=key)
    assert not first.value.replayed
    for _ in range(2):
        with pytest.raises(StripeUnavailable) as replay:
            stage.charge(customer, our_id=our_id, key=key)
        assert replay.value.replayed
    found = stage.account.find_payment(our_id=our_id, customer_id=customer, **stage.just_now())
    assert (found is not None) == (kind == "error_after")
    if found is None:
        found = stage.charge(customer, our_id=our_id)
    assert payments_of(stage, customer) == [found.id]


def test_a_key_of_yesterday_is_forgotten_and_executes_again(tmp_path):
    """Why a lost answer is looked up before a key is used again (scenario 134)."""
    with running_simulator(tmp_path / "home") as simulator:
        stage = StripeStage(StripeAccount(settings_of(simulator)), simulator.sdk())
        customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
        first = stage.charge(customer, our_id=our_id, key=key)
        simulator.control("POST", "clock", {"advance_s": DAY_S - 60})
        assert stage.charge(customer, our_id=our_id, key=key) == first
        simulator.control("POST", "clock", {"advance_s": 120})
        second = stage.charge(customer, our_id=our_id, key=key)
        assert payments_of(stage, customer) == [second.id, first.id]


def test_a_lookup_of_two_objects_with_one_id_is_inconclusive(stage):
    customer, our_id = stage.customer(), stage.our_id()
    for _ in range(2):
        stage.charge(customer, our_id=our_id)
    with pytest.raises(StripeLookupInconclusive, match="several objects"):
        stage.account.find_payment(our_id=our_id, customer_id=customer, **stage.just_now())


def test_a_lookup_that_would_read_too_much_is_inconclusive(stage, simulator):
    customer = stage.customer()
    for _ in range(11):
        stage.charge(customer)
    bounded = StripeAccount(settings_of(simulator, stripe_lookup_objects_max=10))
    with pytest.raises(StripeLookupInconclusive, match="more than 10"):
        bounded.find_payment(our_id=stage.our_id(), customer_id=customer, **stage.just_now())


def test_refused_parameters_do_not_use_a_key_up(stage):
    key = stage.key()
    with pytest.raises(stripe.InvalidRequestError):
        stage.sdk.v1.customers.create({"colour": "red"}, {"idempotency_key": key})
    made = stage.sdk.v1.customers.create({"name": "Ada"}, {"idempotency_key": key})
    assert "idempotent-replayed" not in made.last_response.headers
    again = stage.sdk.v1.customers.create({"name": "Ada"}, {"idempotency_key": key})
    assert (again.id, again.last_response.headers["idempotent-replayed"]) == (made.id, "true")


def test_a_decline_is_replayed_for_the_same_key(stage):
    customer, key, our_id = stage.customer("pm_card_chargeCustomerFail"), stage.key(), stage.our_id()
    for _ in range(2):
        with pytest.raises(StripeCardDeclined):
            stage.charge(customer, our_id=our_id, key=key)
    assert len(payments_of(stage, customer)) == 1


def test_an_unreachable_stripe_is_unavailable(tmp_path):
    gone = RunningSimulator(f"http://127.0.0.1:{free_port()}", tmp_path)  # nothing listens there
    with pytest.raises(StripeUnavailable):
        StripeAccount(settings_of(gone)).payment("pi_1")
