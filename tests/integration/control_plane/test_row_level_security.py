"""The second wall behind the WHERE of each query: what Postgres shows the web process's role, by the tenant that a
transaction has set, and which one a request sets.
"""

import json

import psycopg
import pytest
import sqlalchemy as sa
from litestar import get
from litestar.di import NamedDependency
from sqlmodel import select

from control_plane import row_policies, tenant_scope
from control_plane.api_keys.service import find_principal
from control_plane.auth.authenticate import Authenticator, Pepper
from control_plane.auth.guards import admin_key, tenant_key
from control_plane.database_roles import PRIVILEGES, WEB, grant_privileges
from control_plane.tenants.models import Tenant
from core import db
from core.db import unit_of_work
from tests.fixtures.control_plane.api import PEPPER, running_api
from tests.fixtures.control_plane.browser import admin, join
from tests.fixtures.least_privilege import as_role, user_url

OTHER = "tn_other"
TABLES = sorted(table for table, privileges in PRIVILEGES.items() if WEB in privileges)
PEOPLE = "(SELECT user_id FROM memberships WHERE tenant_id = %(tenant)s)"
OF_INVOICE = "invoice_id IN (SELECT id FROM invoices WHERE tenant_id = %(tenant)s)"
OF_ACCOUNT = "account_id IN (SELECT id FROM accounts WHERE tenant_id = %(tenant)s)"
OF_PAYMENT = "SELECT payment_intent FROM received_payments WHERE tenant_id = %(tenant)s"
TENANT_COLUMN = {
    "tenants": "id",
    "idempotent_responses": "caller",
    "model_groups": "owner",
    "price_versions": "plan_id",
}
OF_PARENT = {
    "users": f"id IN {PEOPLE}",
    "console_sessions": f"user_id IN {PEOPLE}",
    "upload_files": "revision_id IN (SELECT id FROM revisions WHERE tenant_id = %(tenant)s)",
    "invoice_lines": OF_INVOICE,
    "invoice_credits": OF_INVOICE,
    "invoice_tax_lines": OF_INVOICE,
    "invoice_events": OF_INVOICE,
    "credit_note_tax_lines": "credit_note_id IN (SELECT id FROM credit_notes WHERE tenant_id = %(tenant)s)",
    "credit_entries": "lot_id IN (SELECT id FROM credit_lots WHERE tenant_id = %(tenant)s)",
    "discount_ends": "discount_id IN (SELECT id FROM discounts WHERE tenant_id = %(tenant)s)",
    "returned_payments": f"payment_intent IN ({OF_PAYMENT})",
    "entries": OF_ACCOUNT,
    "transfers": f"id IN (SELECT transfer_id FROM entries WHERE {OF_ACCOUNT})",
    "withdrawn_price_versions": "price_version_id IN (SELECT id FROM price_versions WHERE plan_id = %(tenant)s)",
}
OF_PLANS = "plan_id IN (SELECT plan_id FROM plan_assignments WHERE tenant_id = %(tenant)s)"
ALSO_READ = {
    "model_groups": "owner = ''",
    "price_versions": OF_PLANS,
    "withdrawn_price_versions": f"price_version_id IN (SELECT id FROM price_versions WHERE {OF_PLANS})",
}
"""What belongs to the platform, and a tenant may read."""
REFERENCES = {
    "revision_id", "invoice_id", "credit_note_id", "lot_id", "discount_id", "account_id", "transfer_id",
    "price_version_id", "payment_intent", "user_id",
}  # fmt: skip
PARENT_KEYS = {
    "invoice_id": "SELECT min(id) FROM invoices WHERE tenant_id = %s",
    "credit_note_id": "SELECT min(id) FROM credit_notes WHERE tenant_id = %s",
    "price_version_id": "SELECT min(id) FROM price_versions WHERE plan_id = %s",
    "payment_intent": "SELECT min(payment_intent) FROM received_payments WHERE tenant_id = %s",
}
ANY_VALUE = {
    "text": "x", "character varying": "x", "bigint": 1, "integer": 1, "numeric": 1, "double precision": 1,
    "boolean": False, "jsonb": {}, "bytea": "\\x",
    "date": "2026-01-01", "timestamp with time zone": "2026-01-01T00:00:00Z",
}  # fmt: skip

COLUMNS = """
SELECT a.attname, a.atttypid::regtype::text, coalesce(bool_or(a.attnum = ANY(i.indkey) AND NOT EXISTS (
    SELECT FROM pg_attribute t WHERE t.attrelid = a.attrelid AND t.attnum = ANY(i.indkey) AND t.attname = %s)), false)
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisunique
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 1, 2
"""
"""Name, type, and whether the column must differ between tenants."""
WITHOUT_CHECKS = """
DO $$
DECLARE
    each record;
BEGIN
    SET session_replication_role = replica;
    FOR each IN SELECT conrelid::regclass AS name, conname FROM pg_constraint
        WHERE contype = 'c' AND coninhcount = 0 AND connamespace = 'public'::regnamespace
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', each.name, each.conname);
    END LOOP;
END $$
"""


def psycopg_url(url: str) -> str:
    return url.replace("+psycopg", "")


@pytest.fixture(scope="module")
def owner(module_postgres_settings):
    with psycopg.connect(psycopg_url(module_postgres_settings.postgres_dsn), autocommit=True) as connection:
        yield connection


@pytest.fixture
def web(module_postgres_settings):
    url = psycopg_url(user_url(module_postgres_settings.postgres_dsn, WEB))
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def tenant(walk, existing, owner) -> str:
    """A tenant that has one of everything. Another one has a copy of each of its rows."""
    join(walk.api, walk.tenant, "viewer")
    owner.execute(WITHOUT_CHECKS)
    for table in TABLES:
        if table not in row_policies.SHARED:
            if not rows(owner, table, of_tenant(owner, table), tenant=walk.tenant.id):
                add_row(owner, table, walk.tenant.id)
            copy_rows(owner, table, walk.tenant.id)
    owner.execute("SET session_replication_role = origin")
    return walk.tenant.id


def add_row(owner: psycopg.Connection, table: str, tenant: str) -> None:
    """A row of the tenant in a table in which it has none."""
    column, values = TENANT_COLUMN.get(table, "tenant_id"), {}
    for name, kind, _ in owner.execute(COLUMNS, [column, table]).fetchall():
        values[name] = tenant if name == column else [] if kind.endswith("[]") else ANY_VALUE[kind]
        if name in PARENT_KEYS and (table, name) != ("received_payments", "payment_intent"):
            values[name] = owner.execute(PARENT_KEYS[name], [tenant]).fetchone()[0]
    row = f"jsonb_populate_record(NULL::{table}, %s::jsonb)"
    owner.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {row}", [json.dumps(values)])


def copy_rows(owner: psycopg.Connection, table: str, tenant: str) -> None:
    """Copy a tenant's rows for ``OTHER``, with ids of their own."""
    column, changed = TENANT_COLUMN.get(table, "tenant_id"), []
    for name, kind, is_unique in owner.execute(COLUMNS, [column, table]):
        if name == column:
            changed.append(f"'{name}', '{OTHER}'")
        elif kind in ("text", "character varying") and (is_unique or name in REFERENCES):
            changed.append(f"'{name}', t.{name} || '_b'")
        elif kind in ("bigint", "integer") and is_unique:
            changed.append(f"'{name}', t.{name} + 1000000")
    row = f"jsonb_populate_record(t, jsonb_build_object({', '.join(changed)}))"
    mine = f"SELECT ({row}).* FROM {table} t WHERE {of_tenant(owner, table)}"
    owner.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE {mine}", {"tenant": tenant})


def of_tenant(owner: psycopg.Connection, table: str) -> str:
    """What holds for a tenant's rows."""
    column = TENANT_COLUMN.get(table, "tenant_id")
    is_there = column in names_of(owner, table)
    return OF_PARENT.get(table, f"{column} = %(tenant)s" if is_there else "false")


def names_of(owner: psycopg.Connection, table: str) -> set[str]:
    return {name for name, *_ in owner.execute(COLUMNS, ["tenant_id", table])}


def rows(connection: psycopg.Connection, table: str, condition: str = "true", **values: str) -> list[str]:
    return sorted(row for (row,) in connection.execute(f"SELECT t::text FROM {table} t WHERE {condition}", values))


def expected(owner: psycopg.Connection, table: str, tenant: str) -> list[str]:
    """The rows that the tenant should see, as the owner of the tables finds them."""
    if table in row_policies.SHARED:
        return rows(owner, table)
    condition = f"{of_tenant(owner, table)} OR {ALSO_READ.get(table, 'false')}"
    return rows(owner, table, condition, tenant=tenant)


def test_a_select_without_where_sees_one_tenant(owner, web, tenant):
    filled = set()
    for one in (tenant, OTHER):
        web.execute(f"SET tenora.tenant_id = '{one}'")
        for table in TABLES:
            seen = rows(web, table)
            assert seen == expected(owner, table, one), table
            of_others = len(rows(owner, table)) - len(seen)
            assert table in row_policies.SHARED or of_others, table
            if seen and of_others:
                filled.add((table, one))
    of_tenants = {table for table in TABLES if of_tenant(owner, table) != "false"}
    assert filled == {(table, one) for table in of_tenants for one in (tenant, OTHER)}
    assert len(of_tenants) > 60


def test_without_a_tenant_no_tenants_row_is_seen(owner, web, tenant):
    """Also after a transaction that had set one."""
    for _ in range(2):
        for table in TABLES:
            assert rows(web, table) == expected(owner, table, "no tenant"), table
        with web.transaction():
            web.execute(f"SET LOCAL tenora.tenant_id = '{tenant}'")
            assert rows(web, "tenants")


def test_an_admins_request_sees_every_row_and_so_does_a_process_with_that_option(owner, web, tenant):
    web.execute("SET tenora.tenant_id = '*'")
    options = "-c tenora.tenant_id=*"  # as PGOPTIONS has it for a process of the version before
    with psycopg.connect(web.info.dsn, password=web.info.password, options=options) as old:
        for table in TABLES:
            assert rows(web, table) == rows(old, table) == rows(owner, table), table


NEW_PRICE = """
INSERT INTO price_versions (id, plan_id, card, effective_from, created_at)
SELECT 'pv_x', id, '{}', now() + interval '1 h', now() FROM plans LIMIT 1
"""


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO memberships (tenant_id, user_id, role, created_at) VALUES ('tn_other', 'usr_x', 'owner', now())",
        "INSERT INTO idempotent_responses (caller, key, request_sha256, created_at) VALUES ('admin', 'k', '', now())",
        "INSERT INTO audit_events VALUES ('aud_x', NULL, 'a', 'a', 't', '{}', now())",
        "INSERT INTO model_groups SELECT '', 'x', rule, members, 1, 1, 1, 1, now() FROM model_groups",
        "INSERT INTO entries VALUES ('tr_x', 'acc_x', 1)",
        NEW_PRICE,
        "INSERT INTO sign_in_tries VALUES ('x', 1, now())",
        "UPDATE adapters SET tenant_id = 'tn_other'",
        "UPDATE tenants SET id = 'tn_x'",
    ],
)
def test_a_row_of_another_tenant_or_of_the_platform_is_not_written(web, tenant, statement):
    web.execute(f"SET tenora.tenant_id = '{tenant}'")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        web.execute(statement)


def test_another_tenants_rows_are_neither_changed_nor_deleted(owner, web, tenant):
    before = {table: rows(owner, table) for table in ("tenants", "spend_limits", "model_groups")}
    web.execute(f"SET tenora.tenant_id = '{tenant}'")
    assert web.execute("UPDATE tenants SET name = 'x' WHERE id = %s", [OTHER]).rowcount == 0
    assert web.execute("DELETE FROM spend_limits WHERE tenant_id = %s", [OTHER]).rowcount == 0
    assert web.execute("DELETE FROM model_groups WHERE owner IN ('', %s)", [OTHER]).rowcount == 0
    assert {table: rows(owner, table) for table in before} == before


def test_a_view_shows_what_its_tables_show(owner, web, tenant):
    for view in ("adapter_names", "usage_now"):
        assert len(rows(owner, view)) > len(rows(owner, view, "tenant_id = %(tenant)s", tenant=tenant)) > 0
        web.execute(f"SET tenora.tenant_id = '{tenant}'")
        assert rows(web, view) == rows(owner, view, "tenant_id = %(tenant)s", tenant=tenant)
    assert not names_of(owner, "batch_queue") & {"tenant_id", "key_id", "labels"}


def test_every_table_of_the_web_role_has_policies_or_a_reason_to_have_none(owner):
    found = owner.execute(
        "SELECT relname, polname, polpermissive, polroles::regrole[]::text FROM pg_policy JOIN pg_class c"
        " ON c.oid = polrelid WHERE relrowsecurity"
    ).fetchall()
    restricted = {name for name, _, permissive, roles in found if not permissive and roles == f"{{{WEB}}}"}
    assert restricted == set(TABLES) - row_policies.SHARED.keys()
    with_tenants = {table for table in row_policies.SHARED if names_of(owner, table) & {"tenant_id", "user_id"}}
    assert (with_tenants, row_policies.SHARED.keys() - set(TABLES)) == (set(), set())


@pytest.fixture(scope="module")
def forgetful(walk, tenant, module_postgres_settings):
    """The platform with three routes that forget their WHERE: a tenant's, an admin's, and an open one."""
    engine = tenant_scope.connect(as_role(module_postgres_settings, WEB))
    keys = Authenticator(engine=engine, pepper=Pepper(value=PEPPER.encode()), find_principal=find_principal)

    def tenants(engine: sa.Engine) -> list[str]:
        with unit_of_work(engine) as session:
            return sorted(session.exec(select(Tenant.id)))

    @get("/api/v1/forgotten", guards=[tenant_key(keys)], opt={"scope": None}, sync_to_thread=True)
    def of_tenant(engine: NamedDependency[sa.Engine]) -> list[str]:
        return tenants(engine)

    @get("/api/v1/admin/forgotten", guards=[admin_key(keys)], sync_to_thread=True)
    def of_admin(engine: NamedDependency[sa.Engine]) -> list[str]:
        return tenants(engine)

    @get("/forgotten", sync_to_thread=True)
    def of_anyone(engine: NamedDependency[sa.Engine]) -> list[str]:
        return tenants(engine)

    with running_api(walk.api.settings, of_tenant, of_admin, of_anyone) as api:
        yield api
    engine.dispose()


def test_a_route_that_forgets_its_where_shows_one_tenant(forgetful, walk, tenant):
    client = forgetful.client(walk.tenant.key)
    assert client.get("/api/v1/forgotten").json() == [tenant]
    assert len(client.get("/api/v1/invoices").json()["data"]) > 1, "what the tenant has is seen"
    assert forgetful.anyone.get("/forgotten").json() == []
    assert len(forgetful.admin.get("/api/v1/admin/forgotten").json()) > 2
    assert client.get("/api/v1/forgotten").json() == [tenant], "nothing stays with a connection"


def test_a_page_reads_as_its_person(forgetful, walk, tenant):
    member, operator = join(forgetful, walk.tenant, "owner"), admin(forgetful)
    assert member.browser.http.get("/raw/api/v1/forgotten").json() == [tenant]
    assert len(operator.browser.http.get("/raw/api/v1/admin/forgotten").json()) > 2


def test_policies_are_applied_where_they_differ_and_a_new_table_is_closed(engine, postgres_settings):
    policies = "SELECT oid FROM pg_policy ORDER BY oid"
    with engine.connect() as connection:
        before = connection.exec_driver_sql(policies).scalars().all()
    assert grant_privileges(engine) == []
    with engine.begin() as connection:
        assert connection.exec_driver_sql(policies).scalars().all() == before
        connection.exec_driver_sql("DROP POLICY tenant_rows ON adapters")
        connection.exec_driver_sql("ALTER TABLE batches DISABLE ROW LEVEL SECURITY")
        connection.exec_driver_sql("CREATE TABLE later AS SELECT 1 AS id")
        connection.exec_driver_sql(f"GRANT SELECT ON later TO {WEB}")
    row_policies.apply(engine, WEB, ["adapters", "batches", "later"])
    with engine.connect() as connection:
        enabled = "SELECT relname FROM pg_class WHERE relrowsecurity AND relname IN ('adapters', 'batches', 'later')"
        assert len(connection.exec_driver_sql(enabled).all()) == 3
        restricted = "SELECT count(*) FROM pg_policy WHERE polname = 'tenant_rows' AND polrelid = 'adapters'::regclass"
        assert connection.exec_driver_sql(restricted).scalar_one() == 1
    web = db.connect(as_role(postgres_settings, WEB))
    with web.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM later").scalar_one() == 0
    web.dispose()
