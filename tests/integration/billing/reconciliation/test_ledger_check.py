"""What a reconciliation finds in the ledger, in sums and on invoices after a change by hand."""

from typing import get_args

import msgspec
import pytest

from billing.invoices.payments import record_payment
from billing.invoicing import closing
from billing.ledger import AccountRef, TransferKind, _open_accounts
from billing.prices.card import PriceCard, PriceTier, TieredPrice
from billing.reconciliation.differences import OF_ENGINES
from billing.reconciliation.ledger_check import ACCOUNTS
from core.db import unit_of_work
from tests.integration.billing.conftest import PRICES

LEGS = "INSERT INTO entries VALUES (:id, :debit, :nanos), (:id, :credit, -:nanos)"
WHOLE = "INSERT INTO transfers (id, kind, created_at) VALUES (:id, :kind, now())"


@pytest.fixture
def ledger(stage, reconciled):
    """A stage with billed usage and an invoice, in which every count agrees."""
    tenant = stage.tenant()
    stage.bill(stage.event(tenant), stage.event(tenant))
    stage.close()
    stage.bill(stage.event(tenant))
    assert [each for each in reconciled.run(full=True).differences if each.kind not in OF_ENGINES] == []
    return stage


def found(reconciled, *, full: bool = False) -> list[tuple[str, str, str, int]]:
    return [
        (each.kind, each.subject, each.unit, each.unexplained)
        for each in reconciled.run(full=full).differences
        if each.kind not in OF_ENGINES
    ]


def account(stage, kind: str) -> str:
    return stage.value("SELECT id FROM accounts WHERE kind = :k", k=kind)


def close_on_schedule(stage, tenant: str):
    return closing.close_tenant(stage.engine, tenant, stage.now(), scheduled=True)


def test_every_kind_of_transfer_has_its_accounts():
    assert set(ACCOUNTS) == set(get_args(TransferKind))


@pytest.mark.scenario(160)
def test_a_leg_on_a_wrong_account_is_named_by_its_transfer(ledger, reconciled):
    usage = account(ledger, "usage_unbilled")
    wrong = {"debit": usage, "credit": account(ledger, "rounding"), "nanos": 7, "id": "tr_zzz"}
    ledger.force(LEGS, **wrong)
    ledger.force(WHOLE, id="tr_zzz", kind="usage")
    named = ("transfer_accounts", "tr_zzz: usage on rounding", "nanodollar", 7)
    assert found(reconciled) == [named]
    assert named in found(reconciled), "it stands until it is repaired"
    assert named in found(reconciled, full=True)


def test_a_transfer_without_balance_or_with_one_leg_is_named(ledger, reconciled):
    ledger.force("INSERT INTO entries VALUES ('tr_zz1', :a, 5)", a=account(ledger, "revenue"))
    for transfer, kind in (("tr_zz1", "usage"), ("tr_zz2", "payment")):
        ledger.force(WHOLE, id=transfer, kind=kind)
    assert found(reconciled) == [
        ("transfer_balance", "tr_zz1: 1 legs", "nanodollar", -5),
        ("transfer_balance", "tr_zz2: 0 legs", "document", 1),
    ]


def test_a_changed_record_differs_from_its_sums_and_from_its_transfer(ledger, reconciled):
    tenant = ledger.value("SELECT DISTINCT tenant_id FROM usage_records")
    ledger.force(
        "UPDATE usage_records SET output_tokens = output_tokens + 1, output_nanos = output_nanos + 600,"
        " amount_nanos = amount_nanos + 600 WHERE request_id = (SELECT max(request_id) FROM usage_records)"
    )
    assert found(reconciled) == [], "only a full run adds up the records again"
    assert found(reconciled, full=True) == [
        ("records_transfers", f"{tenant}: usage", "nanodollar", 600),
        ("sums_records", "usage_hours: output_nanos", "nanodollar", 600),
        ("sums_records", "usage_hours: output_tokens", "token", 1),
        ("sums_records", "usage_replica_hours: output_tokens", "token", 1),
    ]
    assert len(found(reconciled)) == 4, "what a full run found stands in the next run"


@pytest.mark.parametrize(
    "sums",
    [
        [
            ("usage_hours", "input_tokens", "output_tokens"),
            ("usage_hours", "input_nanos", "cached_input_nanos"),
            ("usage_replica_hours", "kv_page_ms", "output_tokens"),
        ],
        [
            ("usage_days", "cached_tokens", "input_tokens"),
            ("usage_days", "output_nanos", "kv_nanos"),
        ],
        [
            ("usage_months key_1", "input_tokens", "output_tokens"),
            ("usage_months key_1", "cached_tokens", "amount_nanos"),
        ],
    ],
    ids=["hours", "days", "months"],
)
def test_a_sum_that_is_too_high_does_not_hide_another_that_is_too_low(ledger, reconciled, sums):
    tenant = ledger.tenant()
    ledger.bill(ledger.event(tenant))
    changed = set()
    for table, first, second in sums:
        up, down = f"{first} = {first} + 3", f"{second} = {second} - 3"
        ledger.change(f"UPDATE {table.split()[0]} SET {up}, {down} WHERE tenant_id = :t", t=tenant)
        changed |= {("sums_records", f"{table}: {first}", -3), ("sums_records", f"{table}: {second}", 3)}
    assert {(kind, subject, off) for kind, subject, _, off in found(reconciled, full=True)} >= changed


def test_months_hold_what_tiers_changed_in_them(stage, reconciled):
    tiers = (PriceTier(unit_price_nanos=600, up_to=10), PriceTier(unit_price_nanos=400, up_to=None))
    price = TieredPrice(quantity="output_tokens", mode="graduated", tiers=tiers)
    tenant = stage.tenant(card=msgspec.structs.replace(PriceCard.of_all_models(PRICES), tiers=(price,)))
    stage.bill(stage.event(tenant))
    stage.close()
    assert stage.value("SELECT usage_nanos FROM usage_adjustments") == -10 * 200
    assert found(reconciled, full=True) == []
    stage.change("UPDATE usage_months SET amount_nanos = 0 WHERE key_id = ''")
    assert found(reconciled, full=True) == [("sums_records", "usage_months no key: amount_nanos", "nanodollar", -2_000)]


def test_a_changed_invoice_differs_from_its_lines_and_its_transfer(ledger, reconciled):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    ledger.force("UPDATE invoices SET net_cents = net_cents + 1, total_cents = total_cents + 1")
    assert found(reconciled) == [
        ("invoice_lines", invoice["id"], "cent", -1),
        ("invoice_lines", f"{invoice['id']}: rounding", "cent", -1),
        ("invoice_transfer", invoice["id"], "nanodollar", 10_000_000),
    ]


def test_usage_that_a_close_left_out_of_its_invoice_is_found(ledger, reconciled):
    """The invoice agrees with its lines and its transfer, and the rounding has the rest."""
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    lower = {"invoice": invoice["id"], "less": 1_000}
    leg = (
        "UPDATE entries SET amount_nanos = amount_nanos {sign} :less WHERE account_id IN (SELECT id FROM accounts"
        " WHERE kind = '{account}') AND transfer_id = (SELECT id FROM transfers WHERE invoice_id = :invoice)"
    )
    for sql in (
        (
            "UPDATE invoice_lines SET quantity = quantity - 1, amount_nanos = amount_nanos - :less"
            " WHERE invoice_id = :invoice AND kind = 'kv_page_seconds'"
        ),
        "UPDATE invoices SET amount_nanos = amount_nanos - :less WHERE id = :invoice",
        leg.format(sign="+", account="usage_unbilled"),
        leg.format(sign="-", account="rounding"),
    ):
        ledger.force(sql, **lower)
    missing = [
        ("invoice_usage", f"{invoice['id']}: kv page seconds", "page_millisecond", 1_000),
        ("invoice_usage", f"{invoice['id']}: amount", "nanodollar", 1_000),
    ]
    assert found(reconciled) == sorted(missing)
    assert found(reconciled, full=True) == sorted(missing)


@pytest.mark.parametrize("account_kind", ["usage_unbilled", "tax_payable"])
def test_an_invoice_of_which_the_rounding_has_a_difference_is_found(ledger, reconciled, account_kind):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    owner = invoice["tenant_id"] if account_kind == "usage_unbilled" else None
    with unit_of_work(ledger.engine) as session:
        (wrong,) = _open_accounts(session, {AccountRef(account_kind, owner)}).values()
    parameters = {"invoice": invoice["id"], "wrong": wrong, "rounding": account(ledger, "rounding")}
    change = (
        "INSERT INTO entries SELECT id, :{account}, {nanos} FROM transfers WHERE invoice_id = :invoice"
        " ON CONFLICT (transfer_id, account_id) DO UPDATE SET amount_nanos = entries.amount_nanos + {nanos}"
    )
    for name, nanos in (("wrong", -9_000_000), ("rounding", 9_000_000)):
        ledger.force(change.format(account=name, nanos=nanos), invoice=invoice["id"], **{name: parameters[name]})
    assert found(reconciled) == [("invoice_transfer", f"{invoice['id']}: {account_kind}", "nanodollar", 9_000_000)]


def test_usage_of_a_period_below_a_cent_is_found_while_it_waits_and_when_it_is_invoiced(stage, reconciled):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant))
    assert close_on_schedule(stage, tenant) is None
    assert found(reconciled, full=True) == []
    lower = "UPDATE {} SET output_tokens = output_tokens + 2 WHERE tenant_id = :t"
    for table in ("usage_hours", "usage_records"):
        stage.force(lower.format(table), t=tenant)
    assert ("invoice_usage", f"{tenant}: output tokens", "token", 2) in found(reconciled, full=True)
    stage.bill(stage.event(tenant, output_tokens=1_000_000))
    invoice = close_on_schedule(stage, tenant)
    assert ("invoice_usage", f"{invoice.id}: output tokens", "token", 2) in found(reconciled)


def test_late_usage_is_of_the_invoice_that_it_waited_for(stage, reconciled):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant, settled_at_ms=stage.ago_ms(hours=2)))
    stage.close()
    stage.bill(stage.event(tenant, settled_at_ms=stage.ago_ms(minutes=90)), stage.event(tenant))
    stage.close()
    assert stage.value("SELECT count(*) FROM usage_records WHERE late_from IS NOT NULL") == 1
    assert found(reconciled, full=True) == []


def test_an_invoice_without_its_place_in_the_chain_is_found(ledger, reconciled):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    ledger.force("DELETE FROM documents WHERE document_id = :i", i=invoice["id"])
    assert found(reconciled) == [("invoice_document", invoice["id"], "document", 1)]


def test_money_that_arrived_at_stripe_and_is_not_booked_is_found(ledger, reconciled):
    (invoice,) = ledger.rows("SELECT * FROM invoices")
    arrived = {"t": invoice["tenant_id"], "c": invoice["total_cents"] + 7}
    ledger.change(
        "INSERT INTO payment_charges (id, tenant_id, invoice_id, covers, amount_cents, on_page, state, created_at)"
        " VALUES ('chg_1', :t, :i, jsonb_build_object(CAST(:i AS text), :c), :c, false, 'paid', now())",
        **arrived, i=invoice["id"],
    )  # fmt: skip
    ledger.change(
        "INSERT INTO received_payments (payment_intent, tenant_id, charge_id, amount_cents, created_at)"
        " VALUES ('pi_1', :t, 'chg_1', :c, now())",
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
    ledger.force("INSERT INTO usage_adjustments SELECT 'adj_1', :t, now(), 9, 'tr_none', now(), 9", t=tenant)
    assert found(reconciled, full=True) == [
        ("adjustments_transfers", f"{tenant}: adjustment", "nanodollar", 9),
        ("sums_records", "usage_months no key: amount_nanos", "nanodollar", 9),
    ]
