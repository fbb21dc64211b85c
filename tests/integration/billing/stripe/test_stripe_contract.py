"""What billing relies on at Stripe. Passes against the simulator; ``pytest -m stripe_live`` asks Stripe's test mode."""

import time

import pytest
import stripe

from billing.stripe.client import StripeAccount
from billing.stripe.errors import (
    StripeAccessDenied,
    StripeCardDeclined,
    StripeKeyConflict,
    StripeLookupInconclusive,
    StripeObjectNotFound,
    StripeRefused,
    StripeUnavailable,
)
from billing.stripe.objects import MINIMUM_CHARGE_CENTS
from tenora.stack.program import free_port
from tests.conftest import wait_until
from tests.fixtures.stripe_simulator import RunningSimulator
from tests.integration.billing.stripe.conftest import settings_of

pytestmark = pytest.mark.timeout(120)


def test_a_customer_is_created_read_and_found_by_our_id(stage):
    our_id = stage.our_id()
    made = stage.account.create_customer(our_id=our_id, name="Ada", email="ada@example.com", key=stage.key())
    assert (made.our_id, made.deleted) == (our_id, False)
    assert stage.account.customer(made.id) == made
    assert stage.account.find_customer(our_id=our_id, **stage.just_now()) == made
    assert stage.account.find_customer(our_id=stage.our_id(), **stage.just_now()) is None


@pytest.mark.parametrize("email", ["a@b", "a@b@example.com"])
def test_an_email_address_that_cannot_be_is_refused(stage, email):
    with pytest.raises(StripeRefused, match="email") as refused:
        stage.account.create_customer(our_id=stage.our_id(), name="Ada", email=email, key=stage.key())
    assert refused.value.param == "email"


def test_a_deleted_customer_is_shown_as_deleted_and_nothing_is_created_for_it(stage):
    customer = stage.customer(card=None)
    stage.sdk.v1.customers.delete(customer)
    assert stage.account.customer(customer).deleted
    with pytest.raises(StripeObjectNotFound, match="No such customer") as refused:
        stage.account.open_setup_page(
            customer, our_id=stage.our_id(), currency="usd", key=stage.key(),
            success_url="https://example.com", cancel_url="https://example.com",
        )  # fmt: skip
    assert refused.value.param == "customer"


def test_an_object_that_never_was_is_not_found(stage):
    with pytest.raises(StripeObjectNotFound):
        stage.account.payment("pi_that_never_was")


def test_a_declined_card_names_the_decline(stage):
    customer, our_id = stage.customer("pm_card_chargeCustomerFail"), stage.our_id()
    with pytest.raises(StripeCardDeclined) as declined:
        stage.charge(customer, our_id=our_id)
    assert (declined.value.decline_code, declined.value.is_hard, declined.value.needs_owner) == (
        "generic_decline",
        False,
        False,
    )
    found = stage.account.find_payment(our_id=our_id, customer_id=customer, **stage.just_now())
    assert (found.status, found.received_cents) == ("requires_payment_method", 0)


def test_less_than_the_minimum_charge_is_refused(stage):
    with pytest.raises(StripeRefused, match="at least"):
        stage.charge(stage.customer(), cents=MINIMUM_CHARGE_CENTS - 1)
    assert stage.charge(stage.customer(), cents=MINIMUM_CHARGE_CENTS).status == "succeeded"


def test_a_lost_card_cannot_even_be_saved(stage):
    customer = stage.customer(card=None)
    with pytest.raises(stripe.CardError) as declined:
        stage.sdk.v1.payment_methods.attach("pm_card_visa_chargeDeclinedLostCard", {"customer": customer})
    assert declined.value.code == "card_declined"
    assert declined.value.error.decline_code == "lost_card"


def test_a_saved_card_is_charged_without_its_owner(stage):
    customer, our_id = stage.customer(), stage.our_id()
    assert stage.account.newest_card(customer) == stage.account.customer(customer).default_payment_method
    payment = stage.charge(customer, our_id=our_id)
    assert (payment.status, payment.received_cents, payment.our_id) == ("succeeded", 2_500, our_id)
    assert stage.account.find_payment(our_id=our_id, customer_id=customer, **stage.just_now()) == payment


def test_a_saved_card_that_wants_its_owner_is_declined_off_session(stage):
    customer = stage.customer("pm_card_authenticationRequired")
    with pytest.raises(StripeCardDeclined) as declined:
        stage.charge(customer)
    assert declined.value.needs_owner
    assert declined.value.decline_code == "authentication_required"


def test_refunds_return_part_of_a_payment_and_never_more_than_all(stage):
    intent = stage.charge(stage.customer(), cents=1_000).id
    our_id = stage.our_id()
    refund = stage.account.refund(intent, our_id=our_id, amount_cents=300, key=stage.key())
    assert (refund.status, refund.amount_cents, refund.payment_intent) == ("succeeded", 300, intent)
    assert stage.account.went_back(intent).refunds == (refund,)
    assert refund.our_id == our_id
    with pytest.raises(StripeRefused, match="greater than unrefunded amount"):
        stage.account.refund(intent, our_id=stage.our_id(), amount_cents=701, key=stage.key())
    stage.account.refund(intent, our_id=stage.our_id(), amount_cents=700, key=stage.key())
    with pytest.raises(StripeRefused) as refused:
        stage.account.refund(intent, our_id=stage.our_id(), amount_cents=1, key=stage.key())
    assert refused.value.stripe_code == "charge_already_refunded"


def test_a_disputed_payment_has_a_dispute_with_its_amount(stage):
    customer = stage.customer("pm_card_createDispute")
    payment = stage.charge(customer)

    def disputed():
        return stage.sdk.v1.disputes.list({"payment_intent": payment.id}).data

    (found,) = wait_until(disputed, what="the dispute")
    read = stage.account.dispute(found.id)
    assert (read.amount_cents, read.payment_intent, read.reason) == (2_500, payment.id, "fraudulent")


@pytest.mark.scenario(133)
def test_a_repeated_key_gives_the_same_object_and_only_one(stage):
    customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
    first = stage.charge(customer, our_id=our_id, key=key)
    assert stage.charge(customer, our_id=our_id, key=key) == first
    listed = stage.sdk.v1.payment_intents.list({"customer": customer}).data
    assert [each.id for each in listed] == [first.id]


@pytest.mark.scenario(136)
def test_a_key_with_other_parameters_is_a_conflict(stage):
    key = stage.key()
    stage.account.create_customer(our_id="tn_1", name="Ada", email=None, key=key)
    with pytest.raises(StripeKeyConflict, match="same parameters"):
        stage.account.create_customer(our_id="tn_2", name="Ada", email=None, key=key)


@pytest.mark.scenario(145)
def test_fractional_and_missing_amounts_are_refused(stage):
    for given, code in (({"amount": "12.5"}, "parameter_invalid_integer"), ({}, "parameter_missing")):
        with pytest.raises(stripe.InvalidRequestError) as refused:
            stage.sdk.v1.payment_intents.create({"currency": "usd", **given})
        assert (refused.value.code, refused.value.param) == (code, "amount")


def test_a_wrong_key_is_denied(stage):
    denied = stripe.StripeClient("sk_wrong", base_addresses=stage.sdk._requestor.base_addresses)
    with pytest.raises(stripe.AuthenticationError):
        denied.v1.customers.list({"limit": 1})
    assert StripeAccessDenied.status == 502


def test_pages_for_the_owner_have_addresses(stage):
    customer, our_id = stage.customer(card=None), stage.our_id()
    urls = {"success_url": "https://example.com/done?s={CHECKOUT_SESSION_ID}", "cancel_url": "https://example.com/back"}
    setup = stage.account.open_setup_page(customer, our_id=our_id, currency="usd", key=stage.key(), **urls)
    assert (setup.status, setup.our_id) == ("open", our_id)
    assert setup.url
    assert setup.setup_intent
    payment = stage.account.open_payment_page(
        customer, our_id=stage.our_id(), amount_cents=2_500, currency="usd", description="Credits",
        urls=tuple(urls.values()), key=stage.key(),
    )  # fmt: skip
    assert payment.status == "open"
    assert stage.sdk.v1.checkout.sessions.retrieve(payment.id).amount_total == 2_500
    assert stage.account.page(payment.id) == payment
    assert stage.account.find_page(our_id=our_id, customer_id=customer, **stage.just_now()) == setup


def test_a_closed_page_takes_no_payment(stage):
    urls = ("https://example.com/done", "https://example.com/back")
    page = stage.account.open_payment_page(
        stage.customer(card=None), our_id=stage.our_id(), amount_cents=2_500, currency="usd", description="November",
        urls=urls, key=stage.key(),
    )  # fmt: skip
    closed = stage.account.close_page(page.id, key=stage.key())
    assert (closed.status, closed.url) == ("expired", None)
    with pytest.raises(StripeRefused):
        stage.account.close_page(page.id, key=stage.key())


def test_a_lookup_that_would_read_too_much_is_inconclusive(stage):
    customer = stage.customer()
    for _ in range(11):
        stage.charge(customer)
    stage.account._most = 10
    with pytest.raises(StripeLookupInconclusive, match="more than 10"):
        stage.account.find_payment(our_id=stage.our_id(), customer_id=customer, **stage.just_now())


def test_an_unreachable_stripe_is_unavailable(tmp_path):
    gone = RunningSimulator(f"http://127.0.0.1:{free_port()}", tmp_path)  # nothing listens there
    with pytest.raises(StripeUnavailable):
        StripeAccount(settings_of(gone)).payment("pi_1")


def test_events_are_listed_by_type_and_time(stage):
    paid = stage.charge(stage.customer(), cents=700)

    def both():
        types = ["payment_intent.created", "payment_intent.succeeded"]
        listed = stage.account.events_since(**stage.just_now(), types=types)
        ours = [event for event in listed if event.object_id == paid.id]
        return ours if len(ours) == 2 else None

    first, last = wait_until(both, what="both events in the list")
    assert (first.type, last.type) == ("payment_intent.created", "payment_intent.succeeded")
    assert (last.object_kind, last.customer, last.api_version) == ("payment_intent", paid.customer, stripe.api_version)


@pytest.mark.scenario(146)
def test_a_test_clock_dates_what_its_customer_does(stage):
    now = int(time.time())
    clock = stage.sdk.v1.test_helpers.test_clocks.create({"frozen_time": now})
    assert stage.account.clock_time(clock.id).timestamp() == now
    customer = stage.sdk.v1.customers.create({"email": "ada@example.com", "test_clock": clock.id})
    advanced = stage.sdk.v1.test_helpers.test_clocks.advance(clock.id, {"frozen_time": now + 35 * 86_400})
    assert advanced.frozen_time == now + 35 * 86_400
    deadline = time.monotonic() + 60
    while stage.sdk.v1.test_helpers.test_clocks.retrieve(clock.id).status != "ready":
        assert time.monotonic() < deadline
        time.sleep(1)
    made = stage.sdk.v1.payment_intents.create({"amount": 100, "currency": "usd", "customer": customer.id})
    assert made.created >= now + 35 * 86_400
