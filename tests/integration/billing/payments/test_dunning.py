"""What follows a payment that failed: attempts by schedule, waiting for the card's owner, suspension, and
restoration.
"""

import time
from datetime import UTC, datetime, timedelta

import pytest

from billing.payments.dunning import DunningRounds, next_attempt
from billing.stripe.errors import StripeCardDeclined
from billing.tax import profiles
from billing.tax.parties import Buyer
from core.db import unit_of_work
from tests.integration.billing.payments.conftest import PUBLIC_URL

pytestmark = pytest.mark.timeout(120)
START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(("day", "following"), [(0, 3), (2, 3), (3, 5), (5, 7), (7, None), (20, None)])
def test_the_next_attempt_is_the_next_day_of_the_schedule(day, following):
    expected = None if following is None else START + timedelta(days=following)
    assert next_attempt(START, START + timedelta(days=day), (0, 3, 5, 7)) == expected


@pytest.mark.scenario(139)
def test_a_declined_card_is_tried_on_days_0_3_5_7_and_suspends_on_day_14_until_it_is_paid(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    tried_on = [0]
    for day in range(1, 15):
        stage.pass_days(1)
        stage.dunning.run_once()
        if stage.work():
            tried_on.append(day)
        assert stage.standing(tenant) == (None if day < 14 else "suspended"), day
    assert tried_on == [0, 3, 5, 7]
    assert stage.attempts(invoice) == 4
    assert stage.notices(tenant) == ["invoice.finalized"] + ["invoice.payment_failed"] * 4 + ["tenant.suspended"]
    stage.save_card(tenant, "visa")
    started = time.monotonic()
    stage.receive()
    stage.dunning.run_once()
    assert stage.work() == ["done"]
    assert stage.standing(tenant) == "good"
    assert time.monotonic() - started < 20
    assert (stage.due(invoice), stage.is_dunned(invoice)) == (0, False)
    assert stage.notices(tenant)[-1] == "tenant.restored"


@pytest.mark.scenario(140)
def test_a_lost_card_is_not_tried_again_until_there_is_another(stage):
    tenant = stage.tenant("chargeDeclinedLostCard")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    assert stage.case(invoice)["next_attempt_at"] is None
    for _ in range(3):
        stage.pass_days(3)
        stage.receive()  # events about the lost card are no other card
        stage.dunning.run_once()
        assert stage.work() == []
    assert stage.attempts(invoice) == 1
    stage.save_card(tenant, "visa")
    stage.receive()
    stage.dunning.run_once()
    assert stage.work() == ["done"]
    assert not stage.is_dunned(invoice)


@pytest.mark.scenario(141)
def test_a_card_that_wants_its_owner_waits_for_it_at_an_address_of_ours_and_is_paid_once(stage):
    tenant = stage.tenant("authenticationRequired")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    case = stage.case(invoice)
    assert case["next_attempt_at"] is None
    notice = stage.rows("SELECT event_type, data FROM notifications WHERE tenant_id = :t ORDER BY id", t=tenant)
    assert [each["event_type"] for each in notice] == ["invoice.finalized", "invoice.payment_action_required"]
    assert notice[1]["data"]["url"] == f"{PUBLIC_URL}/pay/{case['pay_token']}"
    for _ in range(3):
        stage.pass_days(3)
        stage.receive()
        stage.dunning.run_once()
        assert stage.work() == []
    stage.pay_page(stage.open_page(invoice)["page"])
    stage.receive()
    assert (stage.due(invoice), stage.is_dunned(invoice)) == (0, False)
    assert stage.charged(tenant) == [4_000]


def test_two_unpaid_invoices_both_have_to_be_paid(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    first, second = stage.invoice(tenant, 4_000), stage.invoice(tenant, 5_000)
    stage.work()
    stage.pass_days(14)
    stage.dunning.run_once()
    stage.work()
    assert stage.standing(tenant) == "suspended"
    for invoice, standing in ((first, "suspended"), (second, "good")):
        stage.pay_page(stage.open_page(invoice)["page"])
        stage.receive()
        assert stage.standing(tenant) == standing


def test_a_tenant_that_pays_by_transfer_is_reminded_around_the_due_date_and_neither_charged_nor_suspended(stage):
    tenant = stage.tenant("visa")
    with unit_of_work(stage.engine) as session:
        profiles.set_buyer(session, tenant, Buyer(legal_name="Ada", collection_method="send_invoice"))
    paid, unpaid = stage.invoice(tenant, 3_000), stage.invoice(tenant, 4_000)
    stage.pay_by_hand(paid, 3_000)
    reminded_on: list[int] = []
    for day in range(1, 61):
        stage.pass_days(1)
        before = len(stage.notices(tenant))
        stage.dunning.run_once()
        reminded_on += [day] * (len(stage.notices(tenant)) - before)
        assert stage.work() == []
    assert reminded_on == [11, 15, 21, 28]
    assert stage.notices(tenant)[2:] == ["invoice.will_be_due"] + ["invoice.overdue"] * 3
    assert (stage.standing(tenant), stage.charged(tenant)) == (None, [])
    stage.save_card(tenant, "visa")
    stage.receive()
    stage.dunning.run_once()
    assert stage.work() == []
    stage.pay_by_hand(unpaid, 4_000)
    assert [stage.is_dunned(each) for each in (paid, unpaid)] == [False, False]


def test_a_card_pays_no_small_invoice_that_is_paid_by_transfer(stage):
    tenant = stage.tenant("visa")
    for method, cents in (("send_invoice", 30), ("charge_automatically", 4_000)):
        with unit_of_work(stage.engine) as session:
            profiles.set_buyer(session, tenant, Buyer(legal_name="Ada", collection_method=method))
        stage.invoice(tenant, cents)
    stage.work()
    assert stage.charged(tenant) == [4_000]


def test_without_a_key_of_stripe_no_tenant_is_suspended(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    stage.invoice(tenant, 4_000)
    stage.work()
    stage.pass_days(14)
    DunningRounds(stage.engine, stage.settings, stage.clock, collects=False).run_once()
    assert stage.standing(tenant) is None
    stage.dunning.run_once()
    assert stage.standing(tenant) == "suspended"


@pytest.mark.scenario(146)
def test_a_test_clock_moves_dunning_without_waiting(stage):
    clocks = stage.sdk.v1.test_helpers.test_clocks
    now = int(time.time())
    clock = clocks.create({"frozen_time": now})
    tenant = stage.tenant("chargeDeclinedInsufficientFunds", test_clock=clock.id)
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    for day in (3, 5, 7, 14):
        clocks.advance(clock.id, {"frozen_time": now + day * 86_400 + 60})
        stage.receive()
        stage.dunning.run_once()
        stage.work()
    assert stage.attempts(invoice) == 4
    assert stage.standing(tenant) == "suspended"
    with unit_of_work(stage.engine) as session:
        assert stage.clock(session) < datetime.now(UTC) + timedelta(hours=1)  # real time moved 0


@pytest.mark.parametrize(
    ("card", "day"),
    [("chargeDeclinedLostCard", 0), ("chargeDeclinedInsufficientFunds", 7)],
)
def test_a_card_that_is_saved_during_an_attempt_is_tried_at_once(stage, monkeypatch, card, day):
    tenant = stage.tenant(card)
    if day:
        invoice = stage.invoice(tenant, 4_000)
        stage.work()
        stage.change("UPDATE dunning_cases SET next_attempt_at = started_at + interval '7 days'")
        stage.pass_days(day)
        stage.dunning.run_once()
    else:
        invoice = stage.invoice(tenant, 4_000)
    pay = stage.account.charge_saved_card

    def pay_and_save(*arguments, **options):
        try:
            return pay(*arguments, **options)
        except StripeCardDeclined:
            stage.save_card(tenant, "visa")
            stage.receive()
            raise

    monkeypatch.setattr(stage.account, "charge_saved_card", pay_and_save)
    assert stage.work() == ["failed"]
    stage.dunning.run_once()
    assert stage.work() == ["done"]
    assert (stage.due(invoice), stage.is_dunned(invoice)) == (0, False)


def test_a_card_that_was_tried_already_is_not_tried_again_because_of_its_late_event(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    stage.pass_days(3)
    stage.dunning.run_once()
    stage.save_card(tenant, "chargeDeclinedInsufficientFunds")
    stage.receive()  # wakes the case, and the queued attempt takes the new card
    stage.work()
    stage.dunning.run_once()
    assert stage.work() == []
    assert stage.attempts(invoice) == 2


def test_what_is_left_under_the_minimum_charge_suspends_no_tenant(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    stage.pay_by_hand(invoice, 3_980)
    stage.pass_days(3)
    stage.dunning.run_once()
    assert stage.work() == ["done"]
    assert not stage.is_dunned(invoice)
