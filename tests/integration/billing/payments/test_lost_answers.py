"""Answers of Stripe that never came, came as a 500, or belong to a key that Stripe has forgotten: everything is done
once, and what cannot be certain stops and asks for a person.
"""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from billing.payments import calls, outbox, queue
from billing.payments.operations import ChargeTopUp
from core.db import unit_of_work
from core.errors import Conflict
from core.ids import new_id

pytestmark = pytest.mark.timeout(120)
HOURS_30 = 30 * 3_600


def operations_of_everything(stage) -> tuple[str, str]:
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 600, 400)
    stage.enqueue(tenant, ChargeTopUp(charge_id=new_id("top"), amount_cents=2_500))
    return tenant, invoice


def assert_done_once(stage, tenant: str, invoice: str) -> None:
    assert stage.stopped(tenant) is None
    assert (stage.due(invoice), stage.charged(tenant), stage.bought(tenant)) == (0, [1_000, 2_500], [2_500])
    assert stage.balance("cash") == 3_500


@pytest.mark.scenario(135)
@pytest.mark.parametrize("kind", ["error_before", "error_after"])
def test_a_stored_500_is_looked_up_and_only_what_is_absent_is_sent_with_a_new_key(stage, kind):
    tenant, invoice = operations_of_everything(stage)
    stage.fail(kind, "/v1/payment_intents")
    ended = stage.work()
    for _ in range(6):
        ended += stage.work_later()
    assert "postponed" in ended
    assert_done_once(stage, tenant, invoice)
    keys = stage.rows("SELECT id FROM payment_operations WHERE key_number > 1")
    assert len(keys) == (1 if kind == "error_before" else 0)


@pytest.mark.scenario(135)
@pytest.mark.parametrize("kind", ["error_before", "timeout_after"])
def test_a_refund_that_failed_or_whose_answer_was_lost_is_made_once(stage, kind):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 1_000)
    stage.work()
    stage.credit(invoice, 150)
    stage.fail(kind, "/v1/refunds", seconds=4)
    for _ in range(5):
        stage.work_later()
    stage.receive()
    assert (stage.charged(tenant), stage.balance("cash"), stage.alarms()) == ([850], 850, [])


@pytest.mark.scenario(134)
@pytest.mark.parametrize("path", ["/v1/refunds", "/v1/payment_intents"])
def test_after_30_hours_an_object_is_looked_up_before_its_forgotten_key_is_used(own_stage, path):
    stage = own_stage
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 1_000)
    if path == "/v1/refunds":
        stage.work()
        stage.credit(invoice, 150)
    stage.fail("timeout_after", path, seconds=4)
    assert "postponed" in stage.work()
    stage.simulator.control("POST", "clock", {"advance_s": HOURS_30})
    stage.offset += timedelta(seconds=HOURS_30)
    for _ in range(3):
        stage.work_later()
    assert (stage.due(invoice), stage.charged(tenant)) == (0, [850 if path == "/v1/refunds" else 1_000])


def test_a_limited_call_is_repeated_with_the_same_key(stage):
    tenant, invoice = operations_of_everything(stage)
    stage.fail("rate_limit", "/v1/", times=3)
    for _ in range(6):
        stage.work_later()
    assert_done_once(stage, tenant, invoice)
    assert stage.rows("SELECT id FROM payment_operations WHERE key_number > 1") == []


@pytest.mark.scenario(136)
def test_a_key_that_stripe_knows_from_another_request_stops_the_queue_until_an_admin_lets_it_go_on(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.fail("rate_limit", "/v1/payment_intents")
    assert stage.work(1) == ["postponed"]
    key = stage.value("SELECT idempotency_key FROM payment_operations WHERE kind = 'collect_invoice'")
    stage.sdk.v1.payment_intents.create({"amount": 100, "currency": "usd"}, {"idempotency_key": key})
    assert stage.work_later() == ["stopped"]
    assert stage.alarms() == ["stripe_key_conflict"]
    for _ in range(3):
        assert stage.work_later() == []
    with unit_of_work(stage.engine) as session:
        queue.resume(session, tenant, cancel=False)
    assert stage.work_later() == ["done"]
    assert stage.due(invoice) == 0


def test_two_objects_with_one_id_stop_the_queue(stage):
    tenant = stage.tenant()
    stage.invoice(tenant, 700)
    stage.fail("error_after", "/v1/payment_intents")
    assert stage.work(1) == ["postponed"]
    customer, charge = stage.customer(tenant), stage.value("SELECT id FROM payment_charges")
    twin = {"amount": 700, "currency": "usd", "customer": customer, "metadata": {"tenora_id": charge}}
    stage.sdk.v1.payment_intents.create(twin)
    ended = []
    for _ in range(3):
        ended += stage.work_later()
    assert ended[-1] == "stopped"
    assert stage.alarms() == ["stripe_lookup_inconclusive"]
    assert len(stage.intents(tenant)) == 2  # none was added


def test_a_call_that_fails_under_every_key_stops_the_queue(stage):
    tenant = stage.tenant()
    stage.invoice(tenant, 700)
    stage.fail("error_before", "/v1/payment_intents", method="POST", times=10)
    ended = []
    for _ in range(12):
        ended += stage.work_later()
    assert ended[-1] == "stopped"
    assert stage.value("SELECT key_number FROM payment_operations WHERE kind = 'collect_invoice'") == 3
    assert "stripe_keys_used_up" in stage.alarms()
    assert stage.intents(tenant) == []


def test_a_stripe_that_is_silent_for_an_hour_is_an_alarm_and_loses_nothing(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    stage.fail("rate_limit", "/v1/payment_intents", times=3)
    assert stage.work(1) == ["postponed"]
    stage.offset += timedelta(hours=2)
    assert stage.work(1) == ["postponed"]
    assert stage.alarms() == ["stripe_silent"]
    assert "done" in stage.work_later() + stage.work_later()
    assert stage.due(invoice) == 0
    assert stage.alarms() == ["stripe_silent"]


def test_the_customer_of_a_queue_cannot_be_cancelled(stage):
    tenant = new_id("tn")
    stage.fail("error_before", "/v1/customers", times=10)
    with unit_of_work(stage.engine) as session:
        assert outbox.open_queue(session, tenant).customer_id is None
    for _ in range(12):
        stage.work_later()
    assert stage.stopped(tenant)
    with pytest.raises(Conflict, match="creates the customer"), unit_of_work(stage.engine) as session:
        queue.resume(session, tenant, cancel=True)


def test_a_worker_that_lost_its_lease_writes_nothing(stage):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    slow = stage.queues.claim()
    assert slow is not None
    stage.offset += timedelta(seconds=stage.settings.payments_lease_s + 1)
    assert stage.work() == ["done"]
    assert stage.performer.run(slow) == "lost"
    assert stage.due(invoice) == 0
    assert stage.charged(tenant) == [700]


def test_a_worker_that_was_frozen_before_its_call_does_not_send_a_key_that_was_replaced(stage, monkeypatch):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)
    slow, begin, frozen_s = stage.queues.claim(), calls.Call._begin, stage.settings.payments_lease_s + 1

    def begin_and_freeze(call):
        begun = begin(call)
        if call.claim is slow:
            monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + frozen_s))
            stage.offset += timedelta(seconds=frozen_s)
            stage.pay_by_hand(invoice, 100)
            assert stage.work() == ["done"]  # a new charge over 600, with a new key: Stripe has nothing of the old one
        return begun

    monkeypatch.setattr(calls.Call, "_begin", begin_and_freeze)
    assert stage.performer.run(slow) == "lost"
    assert (stage.due(invoice), stage.charged(tenant), stage.alarms()) == (0, [600], [])


def test_an_operation_that_meets_a_defect_stops_its_queue_with_an_alarm_and_stops_no_other(stage, monkeypatch):
    one, other = stage.tenant(), stage.tenant()
    stage.invoice(one, 700)
    broken_customer, read = stage.customer(one), stage.account.customer

    def broken(customer_id: str):
        if customer_id == broken_customer:
            raise sa.exc.IntegrityError("x", {}, KeyError())
        return read(customer_id)

    monkeypatch.setattr(stage.account, "customer", broken)
    paid = stage.invoice(other, 700)
    assert sorted(stage.work()) == ["done", "stopped"]
    assert stage.due(paid) == 0
    assert stage.alarms() == ["operation_failed"]
    assert "IntegrityError" in stage.stopped(one)
    monkeypatch.undo()
    with unit_of_work(stage.engine) as session:
        queue.resume(session, one, cancel=False)
    assert stage.work() == ["done"]


def test_an_outage_of_postgres_in_an_operation_stops_no_queue(stage, monkeypatch):
    tenant = stage.tenant()
    invoice = stage.invoice(tenant, 700)

    def unreachable(_customer_id: str):
        raise sa.exc.OperationalError("SELECT 1", {}, OSError("gone"))

    monkeypatch.setattr(stage.account, "customer", unreachable)
    with pytest.raises(sa.exc.OperationalError):
        stage.work()
    monkeypatch.undo()
    assert stage.stopped(tenant) is None
    stage.offset += timedelta(seconds=stage.settings.payments_lease_s + 1)
    assert stage.work() == ["done"]
    assert stage.due(invoice) == 0
