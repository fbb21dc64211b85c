"""What a reconciliation finds in the ledger, in sums and on invoices after a change by hand."""

from typing import get_args

import pytest
import sqlalchemy as sa

from billing.invoices.payments import record_payment
from billing.ledger import TransferKind
from billing.reconciliation.transfer_rules import ACCOUNTS
from core.db import unit_of_work

LEGS = "INSERT INTO entries VALUES (:id, :debit, :nanos), (:id, :credit, -:nanos)"
WHOLE = "INSERT INTO transfers (id, kind, created_at) VALUES (:id, :kind, now())"


@pytest.fixture
def ledger(stage, reconciled):
    """A stage with billed usage and an invoice, in which every count agrees."""
    tenant = stage.tenant()
    stage.bill(stage.event(tenant), stage.event(tenant))
    stage.close()
    stage.bill(stage.event(tenant))
    assert [each for each in reconciled.run(full=True).differences if each.kind != "engine_ledger"] == []
    return stage


def found(reconciled, *, full: bool = False) -> list[tuple[str, str, str, int]]:
    return [
        (each.kind, each.subject, each.unit, each.unexplained)
        for each in reconciled.run(full=full).differences
        if each.kind != "engine_ledger"
    ]


def account(stage, kind: str) -> str:
    return stage.value("SELECT id FROM accounts WHERE kind = :k", k=kind)


def by_hand(stage, *statements: tuple[str, dict]) -> None:
    """As the owner of the tables, past every trigger."""
    with stage.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for sql, parameters in statements:
            connection.execute(sa.text(sql), parameters)


def test_every_kind_of_transfer_has_its_accounts():
    assert set(ACCOUNTS) == set(get_args(TransferKind))


@pytest.mark.scenario(160)
def test_a_leg_on_a_wrong_account_is_named_by_its_transfer(ledger, reconciled):
    usage = account(ledger, "usage_unbilled")
    wrong = {"debit": usage, "credit": account(ledger, "rounding"), "nanos": 7, "id": "tr_zzz"}
    by_hand(ledger, (LEGS, wrong), (WHOLE, {"id": "tr_zzz", "kind": "usage"}))
    named = ("transfer_accounts", "tr_zzz: usage on rounding", "nanodollar", 7)
    assert found(reconciled) == [named]
    assert named in found(reconciled), "it stands until it is repaired"
    assert named in found(reconciled, full=True)


def test_a_transfer_without_balance_or_with_one_leg_is_named(ledger, reconciled):
    by_hand(
        ledger,
        ("INSERT INTO entries VALUES ('tr_zz1', :a, 5)", {"a": account(ledger, "revenue")}),
        (WHOLE, {"id": "tr_zz1", "kind": "usage"}),
    )
    assert found(reconciled) == [("transfer_balance", "tr_zz1: 1 legs", "nanodollar", -5)]


def test_a_changed_record_differs_from_its_sums_and_from_its_transfer(ledger, reconciled):
    tenant = ledger.value("SELECT DISTINCT tenant_id FROM usage_records")
    by_hand(
        ledger,
        (
            (
                "UPDATE usage_records SET output_tokens = output_tokens + 1, output_nanos = output_nanos + 600,"
                " amount_nanos = amount_nanos + 600 WHERE request_id = (SELECT min(request_id) FROM usage_records)"
            ),
            {},
        ),
    )
    assert found(reconciled) == [], "only a full run adds up the records again"
    assert found(reconciled, full=True) == [
        ("records_transfers", f"{tenant}: usage", "nanodollar", 600),
        ("sums_records", "usage_hours", "nanodollar", 600),
        ("sums_records", "usage_hours", "token", 1),
        ("sums_records", "usage_replica_hours", "token", 1),
    ]
    assert len(found(reconciled)) == 4, "what a full run found stands in the next run"


def test_a_changed_invoice_differs_from_its_lines_and_its_transfer(ledger, reconciled):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    by_hand(ledger, ("UPDATE invoices SET net_cents = net_cents + 1, total_cents = total_cents + 1", {}))
    assert found(reconciled) == [
        ("invoice_lines", invoice["id"], "cent", -1),
        ("invoice_transfer", invoice["id"], "nanodollar", 10_000_000),
    ]


def test_an_invoice_without_its_place_in_the_chain_is_found(ledger, reconciled):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    by_hand(ledger, ("DELETE FROM documents WHERE document_id = :i", {"i": invoice["id"]}))
    assert found(reconciled) == [("invoice_document", invoice["id"], "document", 1)]


def test_money_that_arrived_at_stripe_and_is_not_booked_is_found(ledger, reconciled):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    arrived = {"t": invoice["tenant_id"], "c": invoice["total_cents"] + 7}
    ledger.change(
        "INSERT INTO received_payments (payment_intent, tenant_id, stripe_invoice, amount_cents, created_at)"
        " VALUES ('pi_1', :t, 'in_1', :c, now())",
        **arrived,
    )
    assert found(reconciled) == [("stripe", "pi_1: received and booked", "cent", invoice["total_cents"] + 7)]
    with unit_of_work(ledger.engine) as session:
        record_payment(
            session, invoice_id=invoice["id"], amount_cents=arrived["c"], source="stripe", reference="stripe:pi_1"
        )  # fmt: skip
    assert found(reconciled) == []


def test_an_adjustment_without_its_transfer_is_found_by_a_full_run(ledger, reconciled):
    tenant = ledger.value("SELECT DISTINCT tenant_id FROM usage_records")
    by_hand(
        ledger,
        (
            "INSERT INTO usage_adjustments SELECT 'adj_1', :t, now(), 9, 'tr_none', now(), 9",
            {"t": tenant},
        ),
    )
    assert found(reconciled, full=True) == [("adjustments_transfers", f"{tenant}: adjustment", "nanodollar", 9)]
