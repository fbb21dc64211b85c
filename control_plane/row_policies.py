"""Row-level security under the web process's role: which rows of each table a transaction may read and write, by the
tenant that it has set (``tenant_scope``). It stands behind the WHERE of each query, for the day on which one lacks it.

Policies follow from the tables. A table with a column ``tenant_id`` shows that tenant's rows; ``_COLUMNS`` and
``_PARENTS`` say where others keep their tenant, and ``SHARED`` tables have no policy. All further tables are closed to
tenants, new ones too. ``database_roles`` applies this after every migration.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlalchemy import Engine  # `tenora` needs only the roles' names

SETTING: Final = "tenora.tenant_id"
"""The setting of a transaction: a tenant's id, or ``EVERY_TENANT``. Without it, no tenant's rows are seen."""
EVERY_TENANT: Final = "*"

# Subqueries, so that Postgres reads the setting once for each query and not once for each row.
_EVERY: Final = f"(SELECT current_setting('{SETTING}', true) = '{EVERY_TENANT}')"
_TENANT: Final = f"(SELECT nullif(current_setting('{SETTING}', true), ''))"

_COLUMNS: Final = {
    "tenants": "id",
    "idempotent_responses": "caller",
    "model_groups": "owner",
    "price_versions": "plan_id",  # a tenant's own prices have its id in place of a plan's
}
"""The column with the tenant's id, where it is not ``tenant_id``."""

_PARENTS: Final = {
    "upload_files": "revisions p WHERE p.id = upload_files.revision_id",
    "invoice_lines": "invoices p WHERE p.id = invoice_lines.invoice_id",
    "invoice_credits": "invoices p WHERE p.id = invoice_credits.invoice_id",
    "invoice_tax_lines": "invoices p WHERE p.id = invoice_tax_lines.invoice_id",
    "invoice_events": "invoices p WHERE p.id = invoice_events.invoice_id",
    "credit_note_tax_lines": "credit_notes p WHERE p.id = credit_note_tax_lines.credit_note_id",
    "credit_entries": "credit_lots p WHERE p.id = credit_entries.lot_id",
    "discount_ends": "discounts p WHERE p.id = discount_ends.discount_id",
    "returned_payments": "received_payments p WHERE p.payment_intent = returned_payments.payment_intent",
    "entries": "accounts p WHERE p.id = entries.account_id",
    "transfers": "entries p WHERE p.transfer_id = transfers.id",
    "withdrawn_price_versions": "price_versions p WHERE p.id = withdrawn_price_versions.price_version_id",
    "users": "memberships p WHERE p.user_id = users.id",
    "console_sessions": "memberships p WHERE p.user_id = console_sessions.user_id",
}
"""Rows that are seen with a row of another table, whose own policy counts: people with their memberships."""

_ALSO_READ: Final = {
    "model_groups": "owner = ''",  # the platform's groups
    "price_versions": f"EXISTS (SELECT FROM plan_assignments p WHERE p.tenant_id = {_TENANT}"
    " AND p.plan_id = price_versions.plan_id)",  # of the plans that the tenant has had
}
"""Rows that a tenant may read and not write."""

SHARED: Final[Mapping[str, str]] = {
    "plans": "A tenant's plan by its name; no row names its tenants.",
    "plan_versions": "The limits of plans.",
    "base_models": "What adapters are trained on.",
    "base_model_names": "The names of base models.",
    "provider_models": "Which base models take no adapters.",
    "batch_pauses": "Whether all batches pause.",
    "sellers": "Every invoice names the seller.",
    "tax_rates": "Every invoice has its taxes from them.",
    "outbox": "Names of what is published next, without its content; an answer waits until its own are gone.",
    "published_snapshot": "How far gateways are, which an answer compares with theirs.",
}
"""Tables without a policy, with the reason. Requests of tenants read them, and no row belongs to a tenant."""

_WITH_TENANT_ID: Final = """
SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attname = 'tenant_id'
WHERE relnamespace = 'public'::regnamespace
"""
_FOUND: Final = """
SELECT relname, array_agg(polname::text ORDER BY polname),
    CASE WHEN relrowsecurity THEN max(obj_description(p.oid, 'pg_policy')) END
FROM pg_policy p JOIN pg_class ON pg_class.oid = polrelid
WHERE relnamespace = 'public'::regnamespace GROUP BY relname, relrowsecurity
"""


def apply(engine: "Engine", role: str, tables: Collection[str]) -> None:
    """Give each of these tables its policies for the role. Other roles see every row, as before. ``engine`` connects as
    the owner of the tables. Only a table whose policies change is locked, for a moment.
    """
    with engine.connect() as connection:
        own = set(connection.exec_driver_sql(_WITH_TENANT_ID).scalars())
        found = {table: (names, mark) for table, names, mark in connection.exec_driver_sql(_FOUND)}
    for table in sorted(tables):
        wanted = {} if table in SHARED else _policies(table, role, has_tenant_id=table in own)
        mark = hashlib.sha256(repr(wanted).encode()).hexdigest() if wanted else None
        names, known = found.get(table, ([], None))
        if (names, known) == (sorted(wanted), mark):
            continue
        with engine.begin() as connection:
            for name in names:
                connection.exec_driver_sql(f"DROP POLICY {name} ON {table}")
            for name, rule in wanted.items():
                connection.exec_driver_sql(f"CREATE POLICY {name} ON {table} {rule}")
                connection.exec_driver_sql(f"COMMENT ON POLICY {name} ON {table} IS '{mark}'")
            connection.exec_driver_sql(f"ALTER TABLE {table} {'ENABLE' if wanted else 'DISABLE'} ROW LEVEL SECURITY")


def _policies(table: str, role: str, *, has_tenant_id: bool) -> dict[str, str]:
    """The policies of a table by their names. The first one opens it to every role, and the others restrict one."""
    opened, only = {"every_role": "USING (true)"}, f"AS RESTRICTIVE FOR {{}} TO {role}"
    seen = " OR ".join([_EVERY, *_rows_of_tenant(table, has_tenant_id=has_tenant_id)])
    if table not in _ALSO_READ:
        return opened | {"tenant_rows": f"{only.format('ALL')} USING ({seen})"}
    return opened | {
        "tenant_reads": f"{only.format('SELECT')} USING ({seen} OR {_ALSO_READ[table]})",
        "tenant_inserts": f"{only.format('INSERT')} WITH CHECK ({seen})",
        "tenant_updates": f"{only.format('UPDATE')} USING ({seen})",
        "tenant_deletes": f"{only.format('DELETE')} USING ({seen})",
    }


def _rows_of_tenant(table: str, *, has_tenant_id: bool) -> list[str]:
    """What holds for the tenant's rows. Nothing for a table that is closed to tenants."""
    if table in _PARENTS:
        return [f"EXISTS (SELECT FROM {_PARENTS[table]})"]
    column = _COLUMNS.get(table, "tenant_id" if has_tenant_id else None)
    return [] if column is None else [f"{column} = {_TENANT}"]
