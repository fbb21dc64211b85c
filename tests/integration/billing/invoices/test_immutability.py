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


@pytest.mark.scenario(109)
def test_the_transfer_of_an_invoiced_record_accepts_no_record(stage):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    with pytest.raises(sa.exc.IntegrityError, match="is final"):
        stage.change(
            "INSERT INTO usage_records SELECT (jsonb_populate_record(NULL::usage_records,"
            ' to_jsonb(u) || \'{"request_id": "req_2"}\')).* FROM usage_records u'
        )


@pytest.mark.scenario(109)
def test_an_old_transfer_accepts_no_legs_that_move_money_between_tenants(stage):
    one, other = stage.tenant(), stage.tenant()
    stage.bill(stage.event(one), stage.event(other))
    stage.close()
    with pytest.raises(sa.exc.IntegrityError, match="is final"):
        stage.change(FURTHER_LEGS, one=one)


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
        web.execute(f"CREATE TEMPORARY TABLE {hidden} (id text)")
        with pytest.raises(psycopg.errors.RestrictViolation, match="is final"):
            web.execute(further)


def test_a_transfer_moves_exactly_what_its_records_cost(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant))
    with pytest.raises(sa.exc.IntegrityError, match=f"records of tenant {tenant}"), stage.engine.begin() as connection:  # noqa: PT012 - at commit
        connection.exec_driver_sql(
            "INSERT INTO entries SELECT 'tr_x', id, CASE kind WHEN 'revenue' THEN -5 ELSE 5 END"
            " FROM accounts WHERE kind IN ('revenue', 'usage_unbilled')"
        )
        connection.exec_driver_sql("INSERT INTO transfers (id, kind, created_at) VALUES ('tr_x', 'usage', now())")


def test_two_invoices_of_a_tenant_cannot_cover_the_same_time(stage):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    with pytest.raises(sa.exc.IntegrityError, match="another invoice"):
        stage.change(
            "INSERT INTO invoices SELECT (jsonb_populate_record(i, jsonb_build_object('id', 'inv_x', 'amount_nanos', 0,"
            " 'period_end', i.period_end + interval '1 hour', 'net_cents', 0, 'total_cents', 0))).* FROM invoices i"
        )


def test_prices_and_plans_cannot_begin_in_the_past(stage):
    tenant = stage.tenant()
    plan = stage.plan_of(tenant)
    statements = {
        "price_versions": (
            "INSERT INTO price_versions (id, plan_id, card, effective_from, created_at)"
            " VALUES ('pv_x', :plan, '{}', now() - interval '1s', now())"
        ),
        "plan_assignments": "INSERT INTO plan_assignments VALUES (:tenant, now() - interval '1 s', :plan, now())",
    }
    for table in (
        "price_versions",
        "plan_assignments",
    ):
        with pytest.raises(sa.exc.IntegrityError, match="in the past"):
            stage.change(statements[table], plan=plan, tenant=tenant)
