"""What the roles of the processes may do in Postgres. The other tests run their processes with these roles."""

import re

import psycopg
import pytest
from sqlmodel import SQLModel

from control_plane.database_roles import BILLING, PRIVILEGES, ROLES, WEB, WORKER
from tests.fixtures.least_privilege import user_url

CONFIGURED = {"plan_versions", "pin_events", "audit_events"}  # tables of other rooms that are written once
TRIGGERS_THAT_FORBID_CHANGES = (
    "billing_refuse_change", "control_plane_rows_are_final", "control_plane_audit_is_final",
)  # fmt: skip
WRITTEN_ONCE = """
SELECT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
WHERE c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal AND p.proname = ANY(%s)
    AND t.tgtype & 16 <> 0 -- on UPDATE
"""


def written_once(connection: psycopg.Connection) -> set[str]:
    """The tables whose rows a trigger protects from every change."""
    return {name for (name,) in connection.execute(WRITTEN_ONCE, [list(TRIGGERS_THAT_FORBID_CHANGES)])}


@pytest.fixture
def connect(postgres_settings):
    opened = []

    def connection(role: str) -> psycopg.Connection:
        url = user_url(postgres_settings.postgres_dsn, role).replace("+psycopg", "")
        opened.append(psycopg.connect(url, autocommit=True))
        return opened[-1]

    yield connection
    for each in opened:
        each.close()


def test_every_table_of_the_code_has_its_privileges():
    assert set(SQLModel.metadata.tables) == set(PRIVILEGES)


def test_money_and_history_are_written_once(connect):
    final = written_once(connect(WEB))
    assert len(final) > 35
    assert final >= CONFIGURED | {
        "accounts", "transfers", "entries", "invoices", "invoice_lines", "invoice_events", "documents", "credit_notes",
        "usage_records", "usage_amendments", "usage_adjustments", "credit_lots", "credit_entries", "received_payments",
        "returned_payments", "price_versions", "plan_assignments", "price_overrides", "discounts", "tax_rates",
        "sellers", "billing_profiles", "resource_hours", "reconciliation_runs", "cost_rows", "replica_rates",
        "notifications", "credit_note_tax_lines", "invoice_tax_lines", "invoice_credits", "reconciliation_differences",
        "engine_ended_requests", "cost_hours",
    }  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_no_process_can_change_or_remove_final_rows_or_drop_what_guards_them(connect, role):
    connection = connect(role)
    for table in sorted(written_once(connection)):
        column = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum = 1", [table]
        ).fetchone()
        for statement in (
            f"UPDATE {table} SET {column[0]} = {column[0]}",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
            f"ALTER TABLE {table} DISABLE TRIGGER ALL",
            f"DROP TABLE {table}",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


@pytest.mark.parametrize("role", ROLES)
def test_no_process_can_make_a_table_a_function_or_a_role(connect, role):
    connection = connect(role)
    for statement in (
        "CREATE TABLE mine (id int)",
        "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA mine",
        "CREATE ROLE mine",
        "SET ROLE postgres",
        "SET session_replication_role = 'replica'",
        "COPY audit_events TO PROGRAM 'cat'",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


def test_every_function_finds_its_tables_in_public_and_never_among_temporary_ones(connect):
    """A session's temporary table, named like ours, would otherwise be the one that a trigger reads."""
    functions = connect(WEB).execute(
        "SELECT proname, coalesce(array_to_string(proconfig, ' '), '') FROM pg_proc"
        " WHERE pronamespace = 'public'::regnamespace"
    )
    assert {
        name for name, config in functions if not re.search(r"search_path=(pg_catalog, )?public, pg_temp\b", config)
    } == set()


def test_what_triggers_check_does_not_depend_on_what_a_transaction_sees(connect):
    """They run as the owner, and no process can put them on a table of its own. Two look at no rows."""
    functions = connect(WEB).execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prorettype = 'trigger'::regtype"
        " AND (NOT prosecdef OR has_function_privilege(oid, 'EXECUTE'))"
    )
    assert {name for (name,) in functions} == {"control_plane_audit_is_final", "billing_cost_windows_are_final"}


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (WEB, "INSERT INTO usage_records DEFAULT VALUES"),
        (WEB, "DELETE FROM outbox"),
        (WORKER, "UPDATE tenants SET name = 'x'"),
        (WORKER, "INSERT INTO api_keys DEFAULT VALUES"),
        (WORKER, "INSERT INTO entries DEFAULT VALUES"),
        (BILLING, "SELECT * FROM api_keys"),
        (BILLING, "SELECT * FROM tenants"),
        (BILLING, "UPDATE usage_records SET late_from = NULL"),
        (BILLING, "INSERT INTO plan_assignments DEFAULT VALUES"),
        (BILLING, "SELECT * FROM adapters"),
        (BILLING, "SELECT * FROM partitions.usage_records_default"),
        (WEB, "SELECT * FROM partitions.usage_records_default"),
        (WEB, "UPDATE usage_replica_hours SET input_tokens = 0"),
        (WEB, "UPDATE usage_hours SET input_nanos = 0"),
        (WEB, "INSERT INTO usage_hours DEFAULT VALUES"),
        (WEB, "UPDATE usage_months SET amount_nanos = 0"),
        (WEB, "INSERT INTO usage_months DEFAULT VALUES"),
        (WEB, "SELECT billing_add_to_month('tn_1', now(), '', 0, 0, 0, 0)"),
        (WORKER, "UPDATE usage_months SET amount_nanos = 0"),
        (WORKER, "INSERT INTO credit_lots DEFAULT VALUES"),
        (WORKER, "INSERT INTO usage_amendments DEFAULT VALUES"),
        (WORKER, "UPDATE payment_operations SET state = 'cancelled'"),
        (WEB, "INSERT INTO received_payments DEFAULT VALUES"),
        (WEB, "INSERT INTO cost_rows DEFAULT VALUES"),
        (BILLING, "INSERT INTO replica_rates DEFAULT VALUES"),
    ],
)
def test_a_process_cannot_do_the_work_of_another(connect, role, statement):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connect(role).execute(statement)


def test_only_billing_may_add_partitions_of_usage_records(connect):
    statement = "SELECT billing_add_usage_partitions(now(), 5)"
    connect(BILLING).execute(statement)
    for role in (WEB, WORKER):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connect(role).execute(statement)
