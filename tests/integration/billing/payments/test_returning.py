"""Money that goes back: what is planned once, and refunds that fail at a bad moment."""

import msgspec
import pytest

from billing.payments.operations import ChargeTopUp, PushCreditNote, RefundTopUp
from core.ids import new_id

pytestmark = pytest.mark.timeout(120)


def test_a_refund_that_fails_while_its_operation_runs_is_booked_when_that_has_ended(stage, monkeypatch):
    tenant = stage.tenant("refundFail")
    stage.enqueue(tenant, ChargeTopUp(top_up_id=new_id("top"), amount_cents=2_500))
    stage.work()
    intent = stage.value("SELECT payment_intent FROM received_payments")
    stage.enqueue(tenant, RefundTopUp(refund_id=new_id("adj"), payment_intent=intent, amount_cents=1_000))
    read = stage.account.refund_of_id

    def read_before_it_failed(refund_id: str):
        monkeypatch.setattr(stage.account, "refund_of_id", read)
        stage.receive()
        return msgspec.structs.replace(read(refund_id), status="pending")

    monkeypatch.setattr(stage.account, "refund_of_id", read_before_it_failed)
    assert stage.work() == ["done"]
    stage.change("UPDATE stripe_events SET next_attempt_at = now() WHERE state = 'stored'")
    while stage.events.run_once():
        pass
    assert stage.alarms() == ["refund_failed"]
    rows = stage.rows("SELECT amount_cents, booked_cents FROM returned_payments ORDER BY amount_cents")
    assert rows == [{"amount_cents": -1_000, "booked_cents": -1_000}, {"amount_cents": 1_000, "booked_cents": 0}]


def test_a_refund_of_an_invoice_is_planned_once_whatever_goes_back_between_two_attempts(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    note = PushCreditNote(note_id="cn_1", invoice_id=invoice, amount_cents=1_000, memo="Outage", to="refund")
    stage.enqueue(tenant, note)
    stage.fail("rate_limit", "/v1/credit_notes")
    assert stage.work(1) == ["postponed"]
    (charge,) = stage.sdk.v1.charges.list({"customer": stage.customer(tenant)}).data
    stage.simulator.control("POST", "disputes", {"charge": charge.id})
    stage.receive()
    assert stage.work_later() == ["done"]
    result = stage.value("SELECT result FROM payment_operations WHERE kind = 'push_credit_note'")
    assert (len(result["refunds"]), result["by_hand_cents"]) == (1, 0)
    assert "refund_to_transfer" not in stage.alarms()
