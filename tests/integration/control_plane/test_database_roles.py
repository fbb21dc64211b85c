"""What the roles of the processes may do in Postgres. The other tests run their processes with these roles."""

import psycopg
import pytest
from sqlmodel import SQLModel

from control_plane.database_roles import BILLING, PRIVILEGES, ROLES, WEB, WORKER
from tests.fixtures.least_privilege import user_url

FINAL = (
    "audit_events", "plan_versions", "price_versions", "plan_assignments", "accounts", "transfers", "entries",
    "invoices", "invoice_lines", "usage_records", "notifications", "pin_events", "resource_hours", "metered_hours",
    "replica_revisions",
)  # fmt: skip


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


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("table", FINAL)
def test_no_process_can_change_or_remove_final_rows_or_drop_what_guards_them(connect, role, table):
    connection = connect(role)
    column = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s LIMIT 1",
        [table],
    ).fetchone()
    for statement in (
        *(
            [f"UPDATE {table} SET {column[0]} = {column[0]}"] if column else []
        ),  # a role sees only tables that it may use
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
        f"ALTER TABLE {table} DISABLE TRIGGER ALL",
        f"DROP TABLE {table}",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


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
        (WEB, "UPDATE usage_hours SET input_tokens = 0"),
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
