"""Granting, refunding, voiding and expiring lots of credit, with their ledger."""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy.exc import IntegrityError

from billing.credits import lots
from core.db import unit_of_work
from core.errors import AppError
from tests.fixtures.together import together

DOLLAR = 1_000_000_000


def refused(act) -> AppError:
    with pytest.raises(AppError) as refusal:
        act()
    return refusal.value


def refund(stage, tenant_id: str, lot_id: str, nanos: int):
    with unit_of_work(stage.engine) as session:
        return lots.refund_unspent(session, tenant_id=tenant_id, lot_id=lot_id, amount_nanos=nanos)


def void(stage, tenant_id: str, lot_id: str):
    with unit_of_work(stage.engine) as session:
        return lots.void_unspent(session, tenant_id=tenant_id, lot_id=lot_id)


def test_a_grant_is_posted_and_shown(stage, wallet):
    tenant = stage.tenant()
    paid = wallet.grant(tenant, 50)
    gift = wallet.grant(tenant, 10, kind="promotional", priority=10)
    assert (paid.status, paid.balance_nanos, paid.amount_nanos) == ("active", 50 * DOLLAR, 50 * DOLLAR)
    assert wallet.account("credits_paid", tenant) == -50 * DOLLAR
    assert wallet.account("credits_promotional", tenant) == -10 * DOLLAR
    assert (wallet.account("cash"), wallet.account("promotions")) == (50 * DOLLAR, 10 * DOLLAR)
    balance = wallet.balance(tenant)
    assert (balance.balance_nanos, balance.paid_nanos, balance.promotional_nanos) == (
        60 * DOLLAR,
        50 * DOLLAR,
        10 * DOLLAR,
    )
    assert [lot.id for lot in balance.lots] == [gift.id, paid.id]
    wallet.check()


@pytest.mark.scenario(79)
def test_one_reference_grants_once_also_by_two_workers_at_once(stage, wallet):
    tenant = stage.tenant()

    granted = together(*[partial(wallet.grant, tenant, 25, reference="pi_1")] * 2)
    assert len({lot.id for lot in granted}) == 1
    assert wallet.balance(tenant).balance_nanos == 25 * DOLLAR
    other = refused(lambda: wallet.grant(tenant, 26, reference="pi_1"))
    assert (other.code, other.param) == ("credit_reference_used", "reference")


@pytest.mark.scenario(81)
def test_at_most_what_is_unspent_can_be_refunded(stage, wallet):
    tenant = stage.tenant()
    lot_id = wallet.granted(tenant, 50)
    wallet.spend(tenant, 12.3399996)
    too_much = refused(lambda: refund(stage, tenant, lot_id, 37_670_000_000))
    assert (too_much.code, too_much.status, too_much.param) == ("refund_exceeds_unspent", 422, "amount_nanos")
    back = refund(stage, tenant, lot_id, 37_660_000_000)
    assert (back.balance_nanos, back.refunded_nanos, back.status) == (400, 37_660_000_000, "active")
    assert wallet.account("cash") == 50 * DOLLAR - 37_660_000_000
    assert refused(lambda: refund(stage, tenant, lot_id, 10_000_000)).code == "refund_exceeds_unspent"
    wallet.check()


def test_only_paid_credit_is_refunded_and_only_in_cents(stage, wallet):
    tenant = stage.tenant()
    gift = wallet.grant(tenant, 10, kind="promotional")
    paid = wallet.grant(tenant, 10)
    assert refused(lambda: refund(stage, tenant, gift.id, DOLLAR)).code == "credit_not_paid"
    for nanos in (0, -10_000_000, 10_000_001):
        assert refused(lambda nanos=nanos: refund(stage, tenant, paid.id, nanos)).param == "amount_nanos"
    assert refused(lambda: refund(stage, stage.tenant(), paid.id, DOLLAR)).code == "credit_lot_not_found"


def test_voiding_takes_what_is_unspent_and_leaves_what_was_used(stage, wallet):
    tenant = stage.tenant()
    lot_id = wallet.granted(tenant, 10, kind="promotional")
    wallet.spend(tenant, 3)
    voided = void(stage, tenant, lot_id)
    assert (voided.voided_nanos, voided.pending_nanos, voided.balance_nanos) == (7 * DOLLAR, 3 * DOLLAR, 0)
    assert wallet.account("promotions") == 3 * DOLLAR
    assert refused(lambda: void(stage, tenant, lot_id)).code == "credit_lot_used"
    wallet.check()


@pytest.mark.scenario(74)
def test_usage_is_split_at_the_instant_of_the_expiry_within_an_hour(stage, wallet):
    tenant = stage.tenant()
    ends = (stage.now() - timedelta(hours=5)).replace(minute=30, second=0, microsecond=0)
    lot_id = wallet.granted(tenant, 10, expires_at=ends)
    wallet.spend(tenant, 1.2, at=ends - timedelta(milliseconds=1))
    wallet.spend(tenant, 2.4, at=ends)
    wallet.spend(tenant, 4.8, at=ends.replace(minute=0))
    balance = wallet.balance(tenant)
    assert (balance.pending_nanos, balance.uncovered_nanos) == (6 * DOLLAR, 2_400_000_000)
    assert wallet.lot(tenant, lot_id).lapsed_nanos == 4 * DOLLAR


@pytest.mark.scenario(75)
def test_what_is_unspent_at_the_expiry_is_breakage_until_late_usage_takes_it_back(stage, wallet):
    tenant = stage.tenant()
    ends = stage.now().replace(microsecond=0) - timedelta(hours=3)
    lot_id = wallet.granted(tenant, 10, expires_at=ends)
    wallet.spend(tenant, 5.8 - 0.0000004, at=ends - timedelta(hours=1))
    shown = wallet.lot(tenant, lot_id)
    assert (shown.status, shown.balance_nanos, shown.lapsed_nanos) == ("expired", 0, 4_200_000_400)
    assert wallet.balance(tenant).balance_nanos == 0
    assert wallet.lapse(tenant) == 1
    assert wallet.lapse(tenant) == 0
    assert wallet.account("breakage") == -4_200_000_400
    wallet.spend(tenant, 1.2, at=ends - timedelta(minutes=1))
    assert wallet.lot(tenant, lot_id).lapsed_nanos == 3_000_000_400
    assert wallet.lapse(tenant) == 1
    assert wallet.account("breakage") == -3_000_000_400
    assert wallet.account("credits_paid", tenant) == -6_999_999_600
    (invoice,) = stage.close()
    assert (invoice.total_cents, invoice.paid_cents) == (700, 700), "the late usage uses the lot, although it lapsed"
    wallet.spend(tenant, 1.2, at=ends - timedelta(minutes=2))
    (invoice,) = stage.close()
    assert (invoice.total_cents, invoice.paid_cents) == (120, 120), "although its period is closed"
    assert wallet.account("breakage") == -1_800_000_000
    wallet.check()


def test_impossible_grants_are_refused_with_their_field(stage, wallet):
    tenant, now = stage.tenant(), stage.now()
    wrong = {
        "amount_nanos": [{"dollars": 0}, {"dollars": -1}, {"dollars": 2_000_000}, {"dollars": 0.000_000_001}],
        "priority": [{"priority": -1}, {"priority": 101}],
        "effective_from": [
            {"effective_from": now - timedelta(seconds=1)},
            {"effective_from": now.replace(tzinfo=None)},
        ],
        "expires_at": [{"expires_at": now - timedelta(days=1)}, {"expires_at": now.replace(tzinfo=None)}],
        "reference": [{"reference": ""}, {"reference": "x" * 201}],
    }
    for param, cases in wrong.items():
        for case in cases:
            fields = {"dollars": 1} | case
            assert refused(lambda fields=fields: wallet.grant(tenant, **fields)).param == param, case
    assert stage.rows("SELECT * FROM credit_lots") == []


_ENTRY = "INSERT INTO credit_entries SELECT lot_id, {}, NULL, 'tr_x', now() FROM credit_entries"
_LOT = (
    "INSERT INTO credit_lots SELECT id || 'x', tenant_id, kind, amount_nanos, 0, now(), NULL, models, 'other', now()"
    " FROM credit_lots"
)


def test_the_database_refuses_entries_that_do_not_continue_a_lot(stage, wallet):
    wallet.grant(stage.tenant(), 10)
    for statement in (
        "UPDATE credit_entries SET balance_nanos = 0",
        "DELETE FROM credit_lots",
        _ENTRY.format("2, 'burn', -1, 5"),
        _ENTRY.format("3, 'burn', -1, balance_nanos - 1"),
        _ENTRY.format("2, 'burn', -2 * balance_nanos, -balance_nanos"),
        _LOT,
    ):
        with pytest.raises(IntegrityError):
            stage.change(statement)


def test_the_database_refuses_an_entry_whose_transfer_moves_something_else(stage, wallet):
    tenant = stage.tenant()
    lot = wallet.grant(tenant, 10)
    wallet.spend(tenant, 3)
    with pytest.raises(IntegrityError, match="does not move"):
        stage.change(
            "INSERT INTO credit_entries SELECT lot_id, 2, 'burn', -5, balance_nanos - 5, NULL,"
            " (SELECT id FROM transfers WHERE kind = 'usage'), now() FROM credit_entries WHERE lot_id = :lot",
            lot=lot.id,
        )
