"""What is final can be neither changed nor added to, from any connection."""

import psycopg
import pytest
import sqlalchemy as sa

from control_plane.database_roles import WEB
from tests.fixtures.least_privilege import user_url


def test_written_invoices_cannot_be_changed(stage):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    for sql in (
        "UPDATE invoices SET total_cents = 0",
        "DELETE FROM invoices",
        "UPDATE invoice_lines SET amount_nanos = 0",
        "DELETE FROM invoice_lines",
        "UPDATE entries SET amount_nanos = 0",
        "DELETE FROM entries",
        "UPDATE transfers SET kind = 'usage'",
        "DELETE FROM transfers",
        "UPDATE accounts SET tenant_id = 'tn_other' WHERE tenant_id IS NOT NULL",
        "UPDATE price_versions SET card = '{}'",
        "DELETE FROM plan_assignments",
        "UPDATE usage_records SET output_tokens = 0, output_nanos = 0",
        "UPDATE usage_records SET late_from = settled_at + interval '1 day'",
        "DELETE FROM usage_records",
        "TRUNCATE usage_records",
        "TRUNCATE invoices CASCADE",
    ):
        with pytest.raises(sa.exc.IntegrityError, match="refused"):
            stage.change(sql)


FURTHER_LINE = """
INSERT INTO invoice_lines (id, invoice_id, position, kind, base_model, price_version_id, unit, quantity,
    unit_price_nanos, amount_nanos, amount_cents, request_count)
SELECT 'il_x', invoice_id, 99, kind, base_model, price_version_id, unit, 1000000, 0, 0, 0, 1
FROM invoice_lines WHERE position = 1
"""
FURTHER_LEGS = """
INSERT INTO entries SELECT t.id, a.id, CASE a.tenant_id WHEN :one THEN 1000000000 ELSE -1000000000 END
FROM (SELECT id FROM transfers WHERE kind = 'usage' ORDER BY id LIMIT 1) t, accounts a WHERE a.kind = 'receivable'
"""


@pytest.mark.parametrize("hidden", ["invoices", "transfers"])
def test_a_process_that_hides_a_table_behind_a_temporary_one_adds_nothing_to_what_is_final(
    stage, postgres_settings, hidden
):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    further = {
        "invoices": FURTHER_LINE,
        "transfers": """
            INSERT INTO entries SELECT t.id, a.id, 1000000000
            FROM (SELECT id FROM public.transfers WHERE kind = 'usage' LIMIT 1) t,
                (SELECT id FROM accounts WHERE kind = 'receivable' LIMIT 1) a
        """,
    }[hidden]
    url = user_url(postgres_settings.postgres_dsn, WEB).replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as web:
        web.execute("SET tenora.tenant_id = '*'")
        web.execute(f"CREATE TEMPORARY TABLE {hidden} (id text)")
        with pytest.raises(psycopg.errors.RestrictViolation, match="is final"):
            web.execute(further)


NEXT = "INSERT INTO invoices SELECT (jsonb_populate_record(i, jsonb_build_object('id', 'inv_x', 'amount_nanos', 0, {},"
ZERO = " 'net_cents', 0, 'total_cents', 0))).* FROM invoices i LIMIT 1"
COINED = "INSERT INTO transfers (id, kind, created_at) VALUES ('tr_x', 'usage', now())"
REFUSED = {
    "a further record of a transfer": (
        "is final",
        ("INSERT INTO usage_records SELECT (jsonb_populate_record(NULL::usage_records,"
        " to_jsonb(u) || jsonb_build_object('request_id', 'req_2'))).* FROM usage_records u LIMIT 1"),
    ),
    "legs that move money between tenants": ("is final", FURTHER_LEGS),
    "a transfer without legs": ("sum to zero", COINED),
    "a transfer that moves something else than its records cost": (
        "records of tenant",
        ("INSERT INTO entries SELECT 'tr_x', id, CASE kind WHEN 'revenue' THEN -5 ELSE 5 END FROM accounts"
        f" WHERE kind = 'revenue' OR (kind = 'usage_unbilled' AND tenant_id = :one); {COINED}"),
    ),
    "two invoices over the same time": (
        "another invoice", NEXT.format("'period_end', i.period_end + interval '1 hour'") + ZERO
    ),
    "an invoice without a number": ("has no number", NEXT.format("'tenant_id', 'tn_x'") + ZERO),
    "a number that does not follow": (
        "does not follow",
        ("INSERT INTO documents SELECT position + 1, kind, number + 2, 'inv_x', tenant_id, content_format,"
        " content_sha256, sha256, sha256, now() FROM documents ORDER BY position DESC LIMIT 1"),
    ),
    "prices that began": (
        "in the past",
        ("INSERT INTO price_versions (id, plan_id, card, effective_from, created_at)"
        " SELECT 'pv_x', plan_id, '{}', now() - interval '1s', now() FROM plan_assignments LIMIT 1"),
    ),
    "a plan that began": (
        "in the past",
        "INSERT INTO plan_assignments SELECT :one, now() - interval '1 s', 'pl_x', now()",
    ),
}  # fmt: skip


@pytest.mark.scenario(109)
def test_the_database_refuses_what_contradicts_final_rows(stage):
    one, other = stage.tenant(), stage.tenant()
    stage.bill(stage.event(one), stage.event(other))
    stage.close()
    for name, (message, sql) in REFUSED.items():
        print(name)  # shown where it is not refused
        with pytest.raises(sa.exc.DBAPIError, match=message), stage.engine.begin() as connection:  # noqa: PT012 - at a commit
            for statement in sql.split(";"):
                connection.execute(sa.text(statement), {"one": one} if ":one" in statement else {})
