"""Invoices on their way through Stripe: pushed, compared, paid, and what stops or ends that."""

import pytest

from billing.payments import resuming
from billing.payments.operations import ChargeTopUp, DeductPayment, EndInvoice, PushCreditNote
from billing.payments.settings import TOP_UP_CENTS_MAX
from core.db import unit_of_work
from core.errors import Conflict, InvalidRequest

pytestmark = pytest.mark.timeout(120)


@pytest.mark.scenario(130)
def test_an_invoice_of_seven_lines_is_pushed_compared_and_paid(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 1_000, 2_001, 305, 4, 1, 250, -60)
    assert stage.work() == ["done"]
    found = stage.of(invoice)
    assert (found.status, found.total, found.amount_paid) == ("paid", 3_501, 3_501)
    assert stage.value("SELECT stripe_invoice FROM pushed_invoices WHERE invoice_id = :i", i=invoice) == found.id
    assert stage.due(invoice) == 0
    assert stage.case(invoice) is None


@pytest.mark.scenario(132)
def test_of_300_lines_the_largest_249_are_shown_and_the_rest_is_one(stage):
    tenant = stage.tenant()
    amounts = [100 + number for number in range(300)]
    invoice = stage.invoice(tenant, *amounts)
    assert stage.work() == ["done"]
    found = stage.of(invoice)
    assert (found.status, found.total) == ("paid", sum(amounts))
    lines = stage.account.lines(found.id)
    assert len(lines) == 250
    (other,) = [line for line in lines if line.our_id == "other_usage"]
    assert other.amount_cents == sum(sorted(amounts)[:51])


@pytest.mark.scenario(138)
def test_amounts_under_the_minimum_charge_are_carried_to_the_next_invoice(stage):
    tenant = stage.tenant()
    small = stage.invoice(tenant, 12)
    assert stage.work() == []
    assert stage.rows("SELECT state, amount_cents FROM pushed_invoices WHERE invoice_id = :i", i=small) == [
        {"state": "carried", "amount_cents": 12}
    ]
    following = stage.invoice(tenant, 700)
    assert stage.work() == ["done"]
    assert (stage.of(following).status, stage.of(following).total) == ("paid", 712)
    assert (stage.due(small), stage.due(following)) == (0, 0)


def test_a_carried_invoice_that_is_voided_or_credited_is_not_collected(stage):
    tenant = stage.tenant()
    voided, credited = stage.invoice(tenant, 12), stage.invoice(tenant, 20)
    assert stage.enqueue(tenant, EndInvoice(invoice_id=voided, how="void")) is None
    note = PushCreditNote(note_id="cn_1", invoice_id=credited, amount_cents=5, memo="x", to="amount_due")
    assert stage.enqueue(tenant, note) is None
    following = stage.invoice(tenant, 100)
    assert stage.work() == ["done"]
    assert stage.of(following).total == 115


def test_an_invoice_of_which_nothing_is_due_is_not_pushed(stage):
    tenant = stage.tenant()
    assert stage.invoice(tenant, 500, -500)
    assert stage.work() == []


def test_an_invoice_that_was_paid_by_hand_meanwhile_is_not_pushed_and_frees_what_it_carried(stage):
    tenant = stage.tenant()
    small, large = stage.invoice(tenant, 12), stage.invoice(tenant, 700)
    stage.change("UPDATE test_invoices SET due_cents = 0 WHERE invoice_id = :i", i=large)
    assert stage.work() == ["done"]
    assert stage.sdk.v1.invoices.list({"customer": stage.customer(tenant)}).data == []
    following = stage.invoice(tenant, 100)
    stage.work()
    assert stage.of(following).total == 112
    assert stage.due(small) == 0


@pytest.mark.scenario(144)
def test_after_the_customer_was_deleted_nothing_is_created_and_an_admin_hears(stage):
    tenant = stage.tenant()
    stage.sdk.v1.customers.delete(stage.customer(tenant))
    stage.invoice(tenant, 700)
    assert stage.work() == ["stopped"]
    assert "was deleted at Stripe" in stage.stopped(tenant)
    assert "customer_deleted" in stage.alarms()
    stage.pass_days(3)
    assert stage.work() == []


def test_a_stopped_queue_of_one_tenant_stops_no_other(stage):
    one, other = stage.tenant(), stage.tenant()
    stage.sdk.v1.customers.delete(stage.customer(one))
    stage.invoice(one, 700)
    paid = stage.invoice(other, 700)
    assert sorted(stage.work()) == ["done", "stopped"]
    assert stage.of(paid).status == "paid"


def test_a_line_that_somebody_added_by_hand_stops_the_push_before_it_is_finalized(stage):
    tenant = stage.tenant()
    stage.fail("rate_limit", "/v1/invoices/in_")
    invoice = stage.invoice(tenant, 700)
    assert stage.work(1) == ["postponed"]
    stage.sdk.v1.invoice_items.create(
        {"customer": stage.customer(tenant), "invoice": stage.of(invoice).id, "amount": 1, "currency": "usd"}
    )
    assert stage.work_later() == ["stopped"]
    assert stage.of(invoice).status == "draft"
    assert "totals_differ" in stage.alarms()


def test_a_balance_at_stripe_stops_the_push_before_it_is_paid(stage):
    tenant = stage.tenant()
    stage.sdk.v1.customers.balance_transactions.create(
        stage.customer(tenant), {"amount": -100, "currency": "usd", "description": "by hand"}
    )
    invoice = stage.invoice(tenant, 700)
    assert stage.work() == ["stopped"]
    assert stage.of(invoice).status == "open"


def test_an_invoice_that_is_voided_or_written_off_is_not_collected_any_more(stage):
    tenant = stage.tenant(card=None)
    voided, given_up = stage.invoice(tenant, 700), stage.invoice(tenant, 800)
    assert stage.work() == ["done"] * 2
    stage.enqueue(tenant, EndInvoice(invoice_id=voided, how="void"))
    stage.enqueue(tenant, EndInvoice(invoice_id=given_up, how="uncollectible"))
    assert stage.work() == ["done"] * 2
    assert (stage.of(voided).status, stage.of(given_up).status) == ("void", "uncollectible")
    assert stage.case(voided)["state"] == "ended"


def test_an_invoice_that_was_paid_by_transfer_is_paid_at_stripe_without_a_charge(stage):
    tenant = stage.tenant(card=None)
    invoice = stage.invoice(tenant, 700)
    assert stage.work() == ["done"]
    stage.enqueue(tenant, EndInvoice(invoice_id=invoice, how="paid_elsewhere"))
    assert stage.work() == ["done"]
    assert stage.of(invoice).status == "paid"
    assert stage.sdk.v1.charges.list({"customer": stage.customer(tenant)}).data == []


@pytest.mark.parametrize("how", ["void", "uncollectible", "paid_elsewhere"])
def test_an_invoice_that_ends_before_its_push_never_reaches_stripe(stage, how):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.enqueue(tenant, EndInvoice(invoice_id=invoice, how=how))
    assert stage.work() == ["done"] * 2
    assert stage.sdk.v1.invoices.list({"customer": stage.customer(tenant)}).data == []


def test_an_operation_is_queued_once_for_each_intention(stage):
    tenant = stage.tenant()
    first = stage.enqueue(tenant, EndInvoice(invoice_id=stage.invoice(tenant, 700), how="void"))
    row = stage.rows("SELECT content FROM payment_operations WHERE id = :i", i=first)[0]
    again = stage.enqueue(tenant, EndInvoice(invoice_id=row["content"]["invoice_id"], how="void"))
    assert again == first


def test_what_was_queued_cannot_be_changed_or_removed(stage):
    tenant = stage.tenant()
    for statement in (
        "UPDATE payment_operations SET content = '{}'",
        "UPDATE payment_operations SET dedupe_key = 'x'",
        "DELETE FROM payment_operations",
        "DELETE FROM payment_steps",
        "UPDATE payment_steps SET object_id = 'cus_other'",
    ):
        with pytest.raises(Exception, match=r"frozen|written once"):
            stage.change(statement)
    assert stage.customer(tenant)


def test_an_invoice_that_waited_for_weeks_is_not_charged_without_an_admin(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.pass_days(8)
    assert stage.work() == ["stopped"]
    assert stage.alarms() == ["push_old"]
    with unit_of_work(stage.engine) as session:
        resuming.resume(session, tenant, cancel=False)
    assert stage.work() == ["done"]
    assert stage.of(invoice).status == "paid"


def test_an_operation_that_could_not_be_read_again_is_refused_before_it_is_queued(stage):
    tenant = stage.tenant()
    with pytest.raises(InvalidRequest, match="amount_cents"):
        stage.enqueue(tenant, ChargeTopUp(top_up_id="top_1", amount_cents=TOP_UP_CENTS_MAX + 1))
    assert stage.value("SELECT count(*) FROM top_ups") == 0
    assert stage.enqueue(tenant, ChargeTopUp(top_up_id="top_1", amount_cents=TOP_UP_CENTS_MAX))


@pytest.mark.parametrize("kind", [PushCreditNote, DeductPayment])
def test_a_credit_or_a_deduction_may_be_larger_than_a_charge(stage, kind):
    tenant = stage.tenant(card=None)
    invoice = stage.invoice(tenant, 700)
    values = {"invoice_id": invoice, "amount_cents": 100_000_000_000, "memo": "Outage"}
    values |= {"note_id": "cn_1", "to": "amount_due"} if kind is PushCreditNote else {"payment_id": "transfer 1"}
    stage.enqueue(tenant, kind(**values))
    assert stage.work() == ["done"] * 2


def test_a_stored_operation_that_cannot_be_read_stops_its_own_queue_only(stage):
    one, other = stage.tenant(), stage.tenant()
    stage.change(
        "INSERT INTO payment_operations (id, tenant_id, kind, content, dedupe_key, state, attempts, created_at)"
        " VALUES ('pop_unreadable', :t, 'pay_later', '{\"kind\": \"pay_later\"}', 'x', 'pending', 0, now())",
        t=one,
    )
    stage.change("UPDATE payment_queues SET next_attempt_at = now() - interval '1 hour' WHERE tenant_id = :t", t=one)
    paid = stage.invoice(other, 700)
    assert stage.work() == []  # the unreadable one waited longest
    assert stage.work() == ["done"]
    assert stage.of(paid).status == "paid"
    assert "pay_later" in stage.stopped(one)
    assert stage.alarms() == ["operation_unreadable"]
    with unit_of_work(stage.engine) as session:
        resuming.resume(session, one, cancel=True)
    following = stage.invoice(one, 700)
    assert stage.work() == ["done"]
    assert stage.of(following).status == "paid"


def test_a_cancelled_push_ends_its_invoice_and_frees_what_it_carried(stage):
    tenant = stage.tenant()
    small, large = stage.invoice(tenant, 12), stage.invoice(tenant, 700)
    stage.pass_days(8)
    assert stage.work() == ["stopped"]
    with unit_of_work(stage.engine) as session:
        resuming.resume(session, tenant, cancel=True)
    stage.pass_days(-8)
    assert stage.value("SELECT state FROM pushed_invoices WHERE invoice_id = :i", i=large) == "ended"
    following = stage.invoice(tenant, 100)
    assert stage.work() == ["done"]
    assert (stage.of(following).status, stage.of(following).total) == ("paid", 112)
    assert (stage.due(small), stage.due(large)) == (0, 700)


def test_the_push_of_an_invoice_that_stripe_has_finalized_ends_when_it_is_voided_there(stage):
    tenant = stage.tenant()
    small = stage.invoice(tenant, 12)
    stage.sdk.v1.customers.balance_transactions.create(
        stage.customer(tenant), {"amount": -100, "currency": "usd", "description": "by hand"}
    )
    invoice = stage.invoice(tenant, 700)
    assert stage.work() == ["stopped"]
    with pytest.raises(Conflict, match="Void it at Stripe"), unit_of_work(stage.engine) as session:
        resuming.resume(session, tenant, cancel=True)
    stage.sdk.v1.invoices.void_invoice(stage.of(invoice).id)
    stage.sdk.v1.customers.delete(stage.customer(tenant))
    with unit_of_work(stage.engine) as session:
        resuming.resume(session, tenant, cancel=False)
    assert stage.work() == ["done"]
    assert "ended_at_stripe" in stage.alarms()
    assert stage.rows("SELECT invoice_id, state, pushed_with FROM pushed_invoices ORDER BY created_at") == [
        {"invoice_id": small, "state": "carried", "pushed_with": None},
        {"invoice_id": invoice, "state": "ended", "pushed_with": None},
    ]


@pytest.mark.parametrize(("end", "status"), [("void_invoice", "void"), ("mark_uncollectible", "uncollectible")])
@pytest.mark.parametrize("heard", [False, True])
def test_an_invoice_that_was_ended_at_stripe_is_an_alarm_and_ends_its_dunning(stage, end, status, heard):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 700)
    stage.work()
    getattr(stage.sdk.v1.invoices, end)(stage.of(invoice).id)
    if heard:
        stage.receive()
    else:  # its event was lost, and the next attempt finds it
        stage.pass_days(3)
        stage.dunning.run_once()
        assert stage.work() == ["done"]
    assert stage.case(invoice)["state"] == "ended"
    assert stage.alarms() == ["ended_at_stripe"]
    assert stage.of(invoice).status == status


@pytest.mark.parametrize("how", ["void", "uncollectible"])
def test_an_end_that_tenora_asked_for_is_no_alarm(stage, how):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 700)
    stage.work()
    stage.enqueue(tenant, EndInvoice(invoice_id=invoice, how=how))
    assert stage.work() == ["done"]
    stage.receive()
    assert stage.case(invoice)["state"] == "ended"
    assert stage.alarms() == []
