"""Money that goes back: what is planned once, and from which payments. ``reconciliation/test_refunds_by_hand.py`` has
the rest.
"""

import pytest

pytestmark = pytest.mark.timeout(120)


def test_a_refund_of_an_invoice_is_planned_once_whatever_goes_back_between_two_attempts(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 4_000)
    stage.work()
    stage.credit(invoice, 1_000)
    stage.fail("timeout_after", "/v1/refunds", seconds=4)
    assert stage.work(1) == ["postponed"]
    (charge,) = stage.sdk.v1.charges.list({"customer": stage.customer(tenant)}).data
    stage.simulator.control("POST", "disputes", {"charge": charge.id})
    stage.receive()
    assert stage.work_later() == ["done"]
    result = stage.value("SELECT result FROM payment_operations WHERE kind = 'refund'")
    assert (result["refund"] is not None, result["by_hand_cents"]) == (True, 0)
    assert "refund_to_transfer" not in stage.alarms()


def test_a_refund_of_an_invoice_comes_from_the_payments_that_paid_it_and_the_rest_is_returned_by_hand(stage):
    tenant = stage.tenant("chargeDeclinedInsufficientFunds")
    invoice = stage.invoice(tenant, 1_000)
    stage.work()
    stage.pay_page(stage.open_page(invoice)["page"])
    stage.receive()
    stage.credit(invoice, 300)
    stage.work()
    assert stage.charged(tenant) == [700]
    other = stage.invoice(tenant, 1_000)
    stage.pay_by_hand(other, 400)
    stage.work()
    stage.pay_page(stage.open_page(other)["page"])
    stage.receive()
    stage.credit(other, 1_000)
    stage.work()
    stage.receive()
    assert stage.charged(tenant) == [700, 0]
    assert stage.balance("cash") == 700
    assert stage.alarms() == ["refund_to_transfer"]
