"""Money that goes back: what is planned once. ``reconciliation/test_refunds_by_hand.py`` has the rest."""

import pytest

from billing.payments.operations import PushCreditNote

pytestmark = pytest.mark.timeout(120)


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
