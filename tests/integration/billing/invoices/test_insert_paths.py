"""No role of a process can add to what is final or reopen it, whichever table it writes to and at whatever moment."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from billing.credits import lots
from control_plane.database_roles import BILLING, WEB
from core import db
from core.db import unit_of_work
from tests.fixtures.least_privilege import as_role

RECORD = """
INSERT INTO usage_records SELECT (jsonb_populate_record(NULL::usage_records, to_jsonb(u) ||
    jsonb_build_object('request_id', 'req_x', 'transfer_id', 'tr_x', 'late_from', NULL))).*
FROM usage_records u WHERE request_id = :invoiced
"""
LEGS = """
INSERT INTO entries SELECT 'tr_x', id, CASE kind WHEN '{debit}' THEN {nanos} ELSE -{nanos} END
FROM accounts WHERE kind IN ('{debit}', '{credit}') AND coalesce(tenant_id, :tenant) = :tenant
"""
WHOLE = "INSERT INTO transfers (id, kind, created_at) VALUES ('tr_x', '{}', now())"
AMENDMENT = """
INSERT INTO usage_amendments SELECT request_id, 1, 'reversal', tenant_id, input_tokens, cached_tokens,
    aborted_prefill_tokens, output_tokens, kv_page_ms, input_nanos, cached_input_nanos, output_nanos, kv_nanos,
    amount_nanos, '{transfer}', 'none', 'admin', now() FROM usage_records WHERE request_id = :{record}
"""
ADJUSTMENT = """
INSERT INTO usage_adjustments (id, tenant_id, period_start, amount_nanos, usage_nanos, transfer_id, created_at)
SELECT 'adj_x', tenant_id, {start}, 9, 9, {transfer}, now() FROM invoices
"""
USAGE_TRANSFER = "(SELECT transfer_id FROM usage_records WHERE request_id = :open)"
BURN = """
INSERT INTO credit_entries SELECT lot_id, number + 1, 'burn', -{nanos}, balance_nanos - {nanos},
    (SELECT id FROM invoices), 'tr_x', now() FROM credit_entries WHERE lot_id = :{lot}
"""
EVENT = """
INSERT INTO invoice_events (invoice_id, seq, kind, amount_cents, surplus_cents, source, transfer_id, status,
    amount_due_cents, paid_cents, credited_cents, created_at)
SELECT invoice_id, seq + 1, '{kind}', amount_due_cents, 0, {source}, {transfer}, '{status}', {due}, {paid}, 0, now()
FROM invoice_events ORDER BY seq DESC LIMIT 1
"""
PAID = {"kind": "payment", "source": "'manual'", "status": "paid", "due": 0, "paid": "amount_due_cents"}
DUE = "(SELECT amount_due_cents * 10000000 FROM invoice_events ORDER BY seq DESC LIMIT 1)"
CARRIED = """
INSERT INTO carried_periods SELECT tenant_id, period_end{0}, period_start, 9, '[]', now(), NULL, period_end{0}
FROM invoices
"""
STATE = "INSERT INTO period_states SELECT tenant_id, {}, '{{}}', now() FROM invoices"
RESOURCE = """
INSERT INTO resource_hours SELECT tenant_id, date_trunc('hour', period_start, 'UTC'), 'cold_loads', 'ad_x', 16, 'base',
    1, date_trunc('hour', period_start, 'UTC') + interval '59 min' FROM invoices
"""
DOCUMENT = """
INSERT INTO documents SELECT position + 1, kind, number + 1, 'inv_x', tenant_id, content_format, content_sha256, sha256,
    encode(sha256(convert_to(concat_ws('|', position + 1, kind, number + 1, 'inv_x', content_format, content_sha256,
        sha256), 'UTF8')), 'hex'), now() FROM documents ORDER BY position DESC LIMIT 1
"""
NOTE = """
INSERT INTO credit_notes SELECT 'cn_x', id, tenant_id, NULL, 1, 0, 1, 'amount_due', 1, 0, 0, 'none', NULL, {}, now()
FROM invoices
"""
NOTE_EVENT = """
INSERT INTO invoice_events (invoice_id, seq, kind, amount_cents, surplus_cents, credit_note_id, status,
    amount_due_cents, paid_cents, credited_cents, created_at)
SELECT invoice_id, seq + 1, 'credit_note', 1, 0, 'cn_x', 'open', amount_due_cents - 1, 0, 1, now()
FROM invoice_events ORDER BY seq DESC LIMIT 1
"""
NOTE_DOCUMENT = """
INSERT INTO documents SELECT position + 1, 'credit_note', 1, 'cn_x', tenant_id, content_format, content_sha256, sha256,
    encode(sha256(convert_to(concat_ws('|', position + 1, 'credit_note', 1, 'cn_x', content_format, content_sha256,
        sha256), 'UTF8')), 'hex'), now() FROM documents ORDER BY position DESC LIMIT 1
"""

ADDITIONS = {
    "a record in the invoiced time with a transfer of its own": (
        "before .*, which is invoiced",
        [RECORD, LEGS.format(debit="usage_unbilled", credit="revenue", nanos=":cost"), WHOLE.format("usage")],
    ),
    "an amendment of an invoiced record": (
        "it is invoiced",
        [
            LEGS.format(debit="revenue", credit="usage_unbilled", nanos=":cost"),
            WHOLE.format("amendment"),
            AMENDMENT.format(transfer="tr_x", record="invoiced"),
        ],
    ),
    "an amendment that moves something else": (
        "does not move",
        [
            LEGS.format(debit="revenue", credit="usage_unbilled", nanos="1"),
            WHOLE.format("amendment"),
            AMENDMENT.format(transfer="tr_x", record="open"),
        ],
    ),
    "an adjustment of the invoiced period": (
        "before .*, which is invoiced",
        [
            LEGS.format(debit="usage_unbilled", credit="revenue", nanos="9"),
            WHOLE.format("adjustment"),
            ADJUSTMENT.format(start="period_start", transfer="'tr_x'"),
        ],
    ),
    "an adjustment that names the transfer of usage": (
        "does not move",
        [ADJUSTMENT.format(start="period_end", transfer=USAGE_TRANSFER)],
    ),
    "promotional credit for the invoice": (
        "is not what invoice",
        [
            LEGS.format(debit="credits_promotional", credit="usage_unbilled", nanos="9"),
            WHOLE.format("credit_burn"),
            BURN.format(lot="gift", nanos="9"),
        ],
    ),
    "paid credit for the invoice without a payment": (
        "is not what invoice",
        [
            LEGS.format(debit="credits_paid", credit="receivable", nanos="10000000"),
            WHOLE.format("credit_burn"),
            BURN.format(lot="paid", nanos="10000000"),
        ],
    ),
    "a payment without money": ("does not move", [EVENT.format(**PAID, transfer="NULL")]),
    "a payment by credit that was not burned": (
        "is not what invoice",
        [EVENT.format(**PAID | {"source": "'credits'"}, transfer="NULL")],
    ),
    "a payment with the transfer of usage": ("does not move", [EVENT.format(**PAID, transfer=USAGE_TRANSFER)]),
    "a payment from the balance with the transfer of money": (
        "does not move",
        [
            LEGS.format(debit="cash", credit="receivable", nanos=DUE),
            WHOLE.format("payment"),
            EVENT.format(**PAID | {"source": "'balance'"}, transfer="'tr_x'"),
        ],
    ),
    "a void that takes nothing back": (
        "does not move",
        [EVENT.format(kind="void", source="NULL", transfer="NULL", status="void", due=0, paid=0)],
    ),
    "a write-off without bad debt": (
        "does not move",
        [
            EVENT.format(
                kind="uncollectible", source="NULL", transfer="NULL", status="uncollectible", due="amount_due_cents",
                paid=0,
            )
        ],
    ),
    "a credit note with the transfer of usage": (
        "does not move",
        [NOTE.format(USAGE_TRANSFER), NOTE_EVENT, NOTE_DOCUMENT],
    ),
    "a carried period over the invoiced time": ("which is invoiced", [CARRIED.format("")]),
    "a carried period that has not ended": ("which is invoiced", [CARRIED.format(" + interval '1 min'")]),
    "what a closed period leaves": ("which is invoiced", [STATE.format("period_end")]),
    "what an open period leaves": ("which is invoiced", [STATE.format("period_end + interval '1 min'")]),
    "a resource of the invoiced time": ("before .*, which is invoiced", [RESOURCE]),
    "a number without an invoice": ("names no invoice", [DOCUMENT]),
    "an earlier end of what is invoiced": (
        "only forwards",
        ["UPDATE subscriptions SET billed_until = billed_until - interval '1 s'"],
    ),
    "no end of what is invoiced": ("only forwards", ["UPDATE subscriptions SET billed_until = NULL"]),
    "a later end than now": (
        "only forwards",
        ["UPDATE subscriptions SET billed_until = clock_timestamp() + interval '1 min'"],
    ),
    "usage of a tenant that has left": (
        "only forwards",
        [
            "UPDATE subscriptions SET ended_at = billed_until",
            "UPDATE subscriptions SET ended_at = NULL",
        ],
    ),
    "an end of a discount in the past": (
        "in the past",
        ["INSERT INTO discount_ends SELECT id, now() - interval '1 h' FROM discounts"],
    ),
}  # fmt: skip


@pytest.fixture
def final(stage):
    """One tenant with a final open invoice over what it used two hours ago, later usage, and credit."""
    tenant = stage.tenant()
    invoiced = stage.event(tenant, settled_at_ms=stage.ago_ms(hours=2), output_tokens=100_000)
    stage.bill(invoiced)
    (invoice,) = stage.close(stage.now() - timedelta(minutes=30))
    assert invoice.status == "open"
    later = stage.event(tenant)
    stage.bill(later)
    granted = {}
    with unit_of_work(stage.engine) as session:
        for kind in ("paid", "promotional"):
            lot = lots.grant(session, tenant_id=tenant, kind=kind, amount_nanos=10**9, reference=kind)
            granted[kind] = lot.id
    stage.change(
        "INSERT INTO discounts (id, tenant_id, name, amount_nanos, duration, effective_from, created_at)"
        " VALUES ('dis_1', :t, 'none', 1, 'once', now(), now())",
        t=tenant,
    )
    return {
        "tenant": tenant, "invoiced": invoiced.request_id, "open": later.request_id, "gift": granted["promotional"],
        "paid": granted["paid"],
        "cost": stage.value("SELECT amount_nanos FROM usage_records WHERE request_id = :r", r=invoiced.request_id),
    }  # fmt: skip


def named(sql: str, values: dict[str, object]) -> dict[str, object]:
    return {name: values[name] for name in values if f":{name}" in sql.replace("::", "")}


@pytest.mark.scenario(109)
@pytest.mark.parametrize("role", [BILLING, WEB])
def test_the_database_refuses_every_addition(stage, final, postgres_settings, role):
    tables = [table for table in sa.inspect(stage.engine).get_table_names() if table != "alembic_version"]
    before = {table: stage.value(f"SELECT count(*) FROM {table}") for table in tables}
    connections = db.connect(as_role(postgres_settings, role))
    for name, (message, statements) in ADDITIONS.items():
        print(name)  # shown where it is not refused
        with (  # noqa: PT012 - at any of them, or at the commit
            pytest.raises(sa.exc.DBAPIError, match=f"{message}|permission denied"),
            connections.begin() as connection,
        ):
            connection.exec_driver_sql("SET LOCAL tenora.tenant_id = '*'")  # the web role's row-level security
            for sql in statements:
                connection.execute(sa.text(sql), named(sql, final))
    connections.dispose()
    assert {table: stage.value(f"SELECT count(*) FROM {table}") for table in tables} == before


@pytest.mark.scenario(109)
def test_a_process_that_narrows_what_it_sees_hides_nothing_from_the_database(stage, final, postgres_settings):
    """Row-level security shows a transaction one tenant's rows. What checks a transfer sees all of its legs."""
    web, tenant = db.connect(as_role(postgres_settings, WEB)), final["tenant"]
    legs = LEGS.format(debit="usage_unbilled", credit="receivable", nanos="5")
    with pytest.raises(sa.exc.IntegrityError, match="sum to zero"), web.begin() as connection:  # noqa: PT012 - at the commit
        connection.exec_driver_sql("SET LOCAL tenora.tenant_id = '*'")
        connection.execute(sa.text(legs), {"tenant": tenant})
        connection.exec_driver_sql("INSERT INTO entries SELECT 'tr_x', id, 9 FROM accounts WHERE kind = 'revenue'")
        connection.exec_driver_sql(WHOLE.format("payment"))
        connection.exec_driver_sql(f"SET LOCAL tenora.tenant_id = '{tenant}'")
    web.dispose()


LINE = """
INSERT INTO invoice_lines SELECT (jsonb_populate_record(l, '{"id": "il_x", "invoice_id": "inv_x"}')).*
FROM invoice_lines l LIMIT 1
"""
INVOICE = """
INSERT INTO invoices SELECT (jsonb_populate_record(i, jsonb_build_object('id', 'inv_x', 'period_start', i.period_end,
    'period_end', i.period_end + interval '1 s'))).* FROM invoices i
"""
PARTS = {
    "an entry": (LEGS.format(debit="customer_balance", credit="revenue", nanos="5"), WHOLE.format("payment")),
    "a record": (RECORD.replace(":invoiced", ":open"), WHOLE.format("usage")),
    "a line": (
        LINE,
        INVOICE,
    ),
    "a tax": (
        "INSERT INTO credit_note_tax_lines VALUES ('cn_x', 1, 'VAT', 190000, 1, 0, NULL)",
        NOTE.format(USAGE_TRANSFER),
    ),
}  # fmt: skip


@pytest.mark.scenario(109)
@pytest.mark.parametrize(("part", "whole"), PARTS.values(), ids=PARTS.keys())
def test_a_part_cannot_commit_after_its_whole(stage, final, part, whole):
    """The whole waits for the transaction that has a part of it, which then fails: the whole does not exist."""
    with stage.engine.connect() as early:
        early.execute(sa.text(part), named(part, final))
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"), stage.engine.begin() as late:  # noqa: PT012 - the setting belongs to it
            late.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
            late.execute(sa.text(whole), named(whole, final))
        with pytest.raises(sa.exc.IntegrityError):
            early.commit()


@pytest.mark.soak
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO plan_assignments SELECT tenant_id, now(), plan_id, now() FROM plan_assignments",
        "INSERT INTO price_versions SELECT 'pv_x', plan_id, now(), now(), card FROM price_versions",
    ],
)
def test_an_old_transaction_cannot_change_prices_from_its_beginning_on(stage, final, sql):
    with pytest.raises(sa.exc.IntegrityError, match="in the past"), stage.engine.begin() as connection:  # noqa: PT012 - it has to grow old
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SELECT pg_sleep(61)")
        connection.exec_driver_sql(sql)
