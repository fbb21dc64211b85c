"""What billing relies on at Stripe. Passes against the simulator; ``pytest -m stripe_live`` asks Stripe's test mode."""

import time

import pytest
import stripe

from billing.stripe_errors import (
    StripeAccessDenied,
    StripeCardDeclined,
    StripeKeyConflict,
    StripeObjectNotFound,
    StripeRefused,
)
from billing.stripe_lookups import our_refund
from billing.stripe_objects import MINIMUM_CHARGE_CENTS
from tests.conftest import wait_until

pytestmark = pytest.mark.timeout(120)


def test_a_customer_is_created_read_changed_and_found_by_our_id(stage):
    our_id = stage.our_id()
    made = stage.account.create_customer(our_id=our_id, name="Ada", email="ada@example.com", key=stage.key())
    assert (made.our_id, made.email, made.deleted, made.balance_cents) == (our_id, "ada@example.com", False, 0)
    changed = stage.account.update_customer(made.id, email="new@example.com", key=stage.key())
    assert stage.account.customer(made.id) == changed
    assert changed.email == "new@example.com"
    assert stage.account.find_customer(our_id=our_id, **stage.just_now()) == changed
    assert stage.account.find_customer(our_id=stage.our_id(), **stage.just_now()) is None


@pytest.mark.parametrize("email", ["a@b", "owner@example.com.", "a@b@example.com", "a b@example.com"])
def test_an_email_address_that_cannot_be_is_refused(stage, email):
    with pytest.raises(StripeRefused, match="email") as refused:
        stage.account.create_customer(our_id=stage.our_id(), name="Ada", email=email, key=stage.key())
    assert refused.value.param == "email"


@pytest.mark.parametrize("country", ["UK", "XX"])
def test_a_country_that_does_not_exist_is_refused(stage, country):
    with pytest.raises(stripe.InvalidRequestError, match=country):
        stage.sdk.v1.customers.create({"address": {"country": country}})


def test_a_deleted_customer_is_shown_as_deleted_and_nothing_is_created_for_it(stage):
    customer = stage.customer(card=None)
    stage.sdk.v1.customers.delete(customer)
    assert stage.account.customer(customer).deleted
    with pytest.raises(StripeObjectNotFound, match="No such customer") as refused:
        stage.account.create_invoice(
            customer, our_id=stage.our_id(), currency="usd", description="November", key=stage.key()
        )
    assert refused.value.param == "customer"


def test_an_object_that_never_was_is_not_found(stage):
    with pytest.raises(StripeObjectNotFound):
        stage.account.invoice("in_that_never_was")


def test_an_invoice_of_seven_lines_is_finalized_and_paid_with_the_saved_card(stage):
    customer = stage.customer()
    our_id = stage.our_id()
    draft = stage.account.create_invoice(
        customer, our_id=our_id, currency="usd", description="November", key=stage.key()
    )
    assert (draft.status, draft.total_cents, draft.our_id) == ("draft", 0, our_id)
    amounts = [1_000, 2_001, 305, 4, 1, 250, -60]
    for amount in amounts:
        stage.account.add_line(draft, our_id=f"il_{amount}", amount_cents=amount, description="x", key=stage.key())
    assert sorted(line.amount_cents for line in stage.account.lines(draft.id)) == sorted(amounts)
    finalized = stage.account.finalize_invoice(draft.id, key=stage.key())
    assert (finalized.status, finalized.total_cents, finalized.due_cents) == ("open", 3_501, 3_501)
    assert finalized.number
    assert finalized.hosted_url
    paid = stage.account.pay_invoice(draft.id, key=stage.key())
    assert (paid.status, paid.paid_cents, paid.remaining_cents) == ("paid", 3_501, 0)
    assert stage.account.find_invoice(our_id=our_id, customer_id=customer, **stage.just_now()) == paid
    (intent,) = stage.account.invoice_payments(draft.id)
    payment = stage.account.payment(intent)
    assert (payment.status, payment.received_cents, payment.customer) == ("succeeded", 3_501, customer)


def test_a_final_invoice_takes_no_further_line_and_no_second_payment(stage):
    paid = stage.paid_invoice(700)
    with pytest.raises(StripeRefused):
        stage.account.add_line(paid, our_id="x", amount_cents=1, description="late", key=stage.key())
    with pytest.raises(StripeRefused, match="already paid"):
        stage.account.pay_invoice(paid.id, key=stage.key())
    with pytest.raises(StripeRefused):
        stage.account.void_invoice(paid.id, key=stage.key())


def test_an_open_invoice_is_voided_or_given_up(stage):
    customer = stage.customer()
    voided = stage.account.void_invoice(stage.open_invoice(customer, 700).id, key=stage.key())
    assert voided.status == "void"
    given_up = stage.account.mark_uncollectible(stage.open_invoice(customer, 800).id, key=stage.key())
    assert given_up.status == "uncollectible"
    assert stage.account.pay_invoice(given_up.id, key=stage.key()).status == "paid"


def test_an_invoice_paid_elsewhere_is_marked_paid(stage):
    invoice = stage.open_invoice(stage.customer(card=None), 700)
    assert stage.account.mark_paid_elsewhere(invoice.id, key=stage.key()).status == "paid"


def test_an_invoice_under_the_minimum_charge_is_paid_at_once_and_the_customer_owes_it(stage):
    customer = stage.customer()
    small = stage.open_invoice(customer, MINIMUM_CHARGE_CENTS - 38)
    assert (small.status, small.total_cents, small.due_cents, small.paid_cents) == ("paid", 12, 0, 0)
    assert stage.account.customer(customer).balance_cents == 12
    following = stage.open_invoice(customer, 100)
    assert (following.total_cents, following.due_cents) == (100, 112)
    assert stage.account.customer(customer).balance_cents == 0


def test_a_declined_card_leaves_the_invoice_open_and_names_the_decline(stage):
    invoice = stage.open_invoice(stage.customer("pm_card_chargeCustomerFail"), 900)
    with pytest.raises(StripeCardDeclined) as declined:
        stage.account.pay_invoice(invoice.id, key=stage.key())
    assert (declined.value.decline_code, declined.value.is_hard, declined.value.needs_owner) == (
        "generic_decline",
        False,
        False,
    )
    assert stage.account.invoice(invoice.id).status == "open"


def test_a_lost_card_cannot_even_be_saved(stage):
    customer = stage.customer(card=None)
    with pytest.raises(stripe.CardError) as declined:
        stage.sdk.v1.payment_methods.attach("pm_card_visa_chargeDeclinedLostCard", {"customer": customer})
    assert declined.value.code == "card_declined"
    assert declined.value.error.decline_code == "lost_card"


def test_an_invoice_without_a_card_is_refused_and_not_called_missing(stage):
    invoice = stage.open_invoice(stage.customer(card=None), 900)
    with pytest.raises(StripeRefused, match="payment method"):
        stage.account.pay_invoice(invoice.id, key=stage.key())


def test_a_card_that_wants_its_owner_needs_the_owner(stage):
    invoice = stage.open_invoice(stage.customer("pm_card_authenticationRequired"), 900)
    with pytest.raises(StripeCardDeclined) as declined:
        stage.account.pay_invoice(invoice.id, key=stage.key())
    assert declined.value.needs_owner
    assert stage.account.invoice(invoice.id).status == "open"


def test_a_saved_card_is_charged_without_its_owner(stage):
    customer, our_id = stage.customer(), stage.our_id()
    (card,) = stage.account.cards(customer)
    assert (card.brand, card.last4) == ("visa", "4242")
    charge = {"amount_cents": 2_500, "currency": "usd", "description": "Top-up"}
    payment = stage.account.charge_saved_card(customer, card.id, our_id=our_id, key=stage.key(), **charge)
    assert (payment.status, payment.received_cents, payment.our_id) == ("succeeded", 2_500, our_id)
    assert stage.account.find_payment(our_id=our_id, customer_id=customer, **stage.just_now()) == payment


def test_a_saved_card_that_wants_its_owner_is_declined_off_session(stage):
    customer = stage.customer("pm_card_authenticationRequired")
    (card,) = stage.account.cards(customer)
    with pytest.raises(StripeCardDeclined) as declined:
        stage.account.charge_saved_card(
            customer,
            card.id,
            our_id=stage.our_id(),
            amount_cents=2_500,
            currency="usd",
            description="x",
            key=stage.key(),
        )
    assert declined.value.needs_owner
    assert declined.value.decline_code == "authentication_required"


def test_refunds_return_part_of_a_payment_and_never_more_than_all(stage):
    (intent,) = stage.account.invoice_payments(stage.paid_invoice(1_000).id)
    our_id = stage.our_id()
    refund = stage.account.refund(intent, our_id=our_id, amount_cents=300, key=stage.key())
    assert (refund.status, refund.amount_cents, refund.payment_intent) == ("succeeded", 300, intent)
    found = stage.account.went_back(intent)
    assert (our_refund(found, our_id), our_refund(found, stage.our_id())) == (refund, None)
    with pytest.raises(StripeRefused, match="greater than unrefunded amount"):
        stage.account.refund(intent, our_id=stage.our_id(), amount_cents=701, key=stage.key())
    stage.account.refund(intent, our_id=stage.our_id(), amount_cents=700, key=stage.key())
    with pytest.raises(StripeRefused) as refused:
        stage.account.refund(intent, our_id=stage.our_id(), amount_cents=1, key=stage.key())
    assert refused.value.stripe_code == "charge_already_refunded"


def test_a_credit_note_makes_an_open_invoice_cheaper(stage):
    invoice, our_id = stage.open_invoice(stage.customer(), 10_000), stage.our_id()
    note = stage.account.create_credit_note(
        invoice.id, our_id=our_id, amount_cents=3_000, memo="Outage", to="amount_due", key=stage.key()
    )
    assert (note.status, note.total_cents, note.invoice) == ("issued", 3_000, invoice.id)
    assert stage.account.find_credit_note(invoice.id, our_id=our_id) == note
    paid = stage.account.pay_invoice(invoice.id, key=stage.key())
    assert (paid.status, paid.paid_cents) == ("paid", 7_000)


def test_credit_notes_before_the_payment_lower_what_remains_and_end_at_nothing(stage):
    invoice = stage.open_invoice(stage.customer(), 1_000)
    note = {"memo": "Paid by transfer", "to": "amount_due"}
    for amount_cents in (300, 200):
        stage.account.create_credit_note(
            invoice.id, our_id=stage.our_id(), amount_cents=amount_cents, key=stage.key(), **note
        )
    lowered = stage.account.invoice(invoice.id)
    assert (lowered.status, lowered.total_cents, lowered.due_cents, lowered.remaining_cents) == (
        "open",
        1_000,
        500,
        500,
    )
    assert (lowered.noted_cents, lowered.uncredited_cents) == (500, 500)
    with pytest.raises(StripeRefused):
        stage.account.create_credit_note(invoice.id, our_id=stage.our_id(), amount_cents=501, key=stage.key(), **note)
    stage.account.create_credit_note(invoice.id, our_id=stage.our_id(), amount_cents=500, key=stage.key(), **note)
    ended = stage.account.invoice(invoice.id)
    assert (ended.status, ended.paid_cents, ended.uncredited_cents) == ("paid", 0, 0)
    assert stage.account.invoice_payments(invoice.id) == []


def test_a_disputed_payment_has_a_dispute_with_its_amount(stage):
    customer = stage.customer("pm_card_createDispute")
    (card,) = stage.account.cards(customer)
    charge = {"amount_cents": 2_500, "currency": "usd", "description": "Top-up"}
    payment = stage.account.charge_saved_card(customer, card.id, our_id=stage.our_id(), key=stage.key(), **charge)

    def disputed():
        return stage.sdk.v1.disputes.list({"payment_intent": payment.id}).data

    (found,) = wait_until(disputed, what="the dispute")
    read = stage.account.dispute(found.id)
    assert (read.amount_cents, read.payment_intent, read.reason) == (2_500, payment.id, "fraudulent")


def test_a_credit_note_on_a_paid_invoice_says_where_the_money_goes(stage):
    invoice = stage.paid_invoice(10_000)
    (intent,) = stage.account.invoice_payments(invoice.id)
    note = {"our_id": stage.our_id(), "memo": "Outage"}
    with pytest.raises(StripeRefused, match="must equal"):
        stage.account.create_credit_note(invoice.id, amount_cents=3_000, to="amount_due", key=stage.key(), **note)
    refund = stage.account.refund(intent, our_id=stage.our_id(), amount_cents=3_000, key=stage.key())
    stage.account.create_credit_note(invoice.id, amount_cents=3_000, to=refund, key=stage.key(), **note)
    stage.account.create_credit_note(invoice.id, amount_cents=2_000, to="outside", key=stage.key(), **note)
    stage.account.create_credit_note(invoice.id, amount_cents=1_000, to="balance", key=stage.key(), **note)
    customer = stage.account.invoice(invoice.id).customer
    assert stage.account.customer(customer).balance_cents == -1_000
    with pytest.raises(StripeRefused):
        stage.account.create_credit_note(invoice.id, amount_cents=4_001, to="outside", key=stage.key(), **note)


@pytest.mark.scenario(133)
def test_a_repeated_key_gives_the_same_object_and_only_one(stage):
    customer, key, our_id = stage.customer(), stage.key(), stage.our_id()
    invoice = {"our_id": our_id, "currency": "usd", "description": "November"}
    first = stage.account.create_invoice(customer, key=key, **invoice)
    assert stage.account.create_invoice(customer, key=key, **invoice) == first
    listed = stage.sdk.v1.invoices.list({"customer": customer}).data
    assert [each.id for each in listed] == [first.id]


@pytest.mark.scenario(136)
def test_a_key_with_other_parameters_is_a_conflict(stage):
    key = stage.key()
    stage.account.create_customer(our_id="tn_1", name="Ada", email=None, key=key)
    with pytest.raises(StripeKeyConflict, match="same parameters") as conflict:
        stage.account.create_customer(our_id="tn_2", name="Ada", email=None, key=key)
    assert not conflict.value.retryable


@pytest.mark.scenario(145)
@pytest.mark.parametrize(
    ("parameters", "code", "param"),
    [
        ({"customer": "{customer}", "colour": "red"}, "parameter_unknown", "colour"),
        ({"customer": "{customer}", "collection_method": "by_carrier_pigeon"}, None, "collection_method"),
        ({"customer": "{customer}", "auto_advance": "perhaps"}, None, "auto_advance"),
        ({"customer": "{customer}", "days_until_due": "12.5"}, "parameter_invalid_integer", "days_until_due"),
        ({"customer": "cus_that_never_was"}, "resource_missing", "customer"),
    ],
)
def test_wrong_parameters_raise_the_sdks_own_error(stage, parameters, code, param):
    customer = stage.customer(card=None)
    given = {name: customer if value == "{customer}" else value for name, value in parameters.items()}
    with pytest.raises(stripe.InvalidRequestError) as refused:
        stage.sdk.v1.invoices.create(given)
    assert (refused.value.http_status, refused.value.param) == (400, param)
    assert code is None or refused.value.code == code


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
    assert (setup.status, setup.payment_status, setup.our_id) == ("open", "no_payment_required", our_id)
    assert setup.url
    assert setup.setup_intent
    payment = stage.account.open_payment_page(
        customer, our_id=stage.our_id(), amount_cents=2_500, currency="usd", description="Credits",
        urls=tuple(urls.values()), key=stage.key(),
    )  # fmt: skip
    assert (payment.status, payment.payment_status, payment.amount_cents) == ("open", "unpaid", 2_500)
    assert stage.account.page(payment.id) == payment
    assert stage.account.find_page(our_id=our_id, customer_id=customer, **stage.just_now()) == setup


def test_events_are_listed_by_type_and_time(stage):
    paid = stage.paid_invoice(700)

    def both():
        listed = stage.account.events_since(**stage.just_now(), types=["invoice.paid", "invoice.finalized"])
        ours = [event for event in listed if event.object_id == paid.id]
        return ours if len(ours) == 2 else None

    first, last = wait_until(both, what="both events in the list")
    assert (first.type, last.type) == ("invoice.finalized", "invoice.paid")
    assert (last.object_kind, last.customer, last.api_version) == ("invoice", paid.customer, stripe.api_version)


def test_lists_are_read_to_the_end(stage):
    customer = stage.customer(card=None)
    made = [stage.sdk.v1.invoices.create({"customer": customer}).id for _ in range(5)]
    page = stage.sdk.v1.invoices.list({"customer": customer, "limit": 2})
    assert page.has_more
    assert [each.id for each in page.auto_paging_iter()] == made[::-1]


@pytest.mark.scenario(146)
def test_a_test_clock_moves_due_dates(stage):
    now = int(time.time())
    clock = stage.sdk.v1.test_helpers.test_clocks.create({"frozen_time": now})
    customer = stage.sdk.v1.customers.create({"email": "ada@example.com", "test_clock": clock.id})
    invoice = stage.sdk.v1.invoices.create(
        {"customer": customer.id, "collection_method": "send_invoice", "days_until_due": 30}
    )
    assert invoice.due_date == now + 30 * 86_400
    advanced = stage.sdk.v1.test_helpers.test_clocks.advance(clock.id, {"frozen_time": now + 35 * 86_400})
    assert advanced.frozen_time == now + 35 * 86_400
    deadline = time.monotonic() + 60
    while stage.sdk.v1.test_helpers.test_clocks.retrieve(clock.id).status != "ready":
        assert time.monotonic() < deadline
        time.sleep(1)
    assert stage.sdk.v1.invoices.create({"customer": customer.id}).created >= now + 35 * 86_400
