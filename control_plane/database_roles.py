"""The Postgres roles of Tenora's processes and what each may do to each table.

``python -m control_plane migrate`` runs as the owner of the tables and grants these privileges after every migration.
So a process that is taken over can rewrite no audit row, price, ledger entry, usage record or invoice, and cannot drop
the triggers that forbid it either. A process whose role does not exist connects as another one, with its privileges.
``row_policies`` narrows what the web process's role may do from tables to rows.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from control_plane import row_policies

if TYPE_CHECKING:
    from sqlalchemy import Engine  # `tenora` needs only the roles' names

WEB: Final = "tenora_web"
WORKER: Final = "tenora_worker"
BILLING: Final = "tenora_billing"
ROLES: Final = (WEB, WORKER, BILLING)

_READ: Final = "SELECT"
_ADD: Final = "SELECT, INSERT"
_CHANGE: Final = "SELECT, INSERT, UPDATE, DELETE"

_MASTER: Final = {WEB: _CHANGE, WORKER: _READ}
_SHARED: Final = {WEB: _CHANGE, WORKER: _CHANGE}
_PRICES: Final = {WEB: _ADD, WORKER: _READ, BILLING: _READ}
_SUMS: Final = {WEB: _READ, WORKER: _READ, BILLING: "SELECT, INSERT, UPDATE"}
_METERED: Final = {WEB: _READ, BILLING: _ADD}
_COSTS: Final = {WEB: _READ, WORKER: _READ, BILLING: _ADD}
_LEDGER: Final = {WEB: _ADD, WORKER: _READ, BILLING: _ADD}
_QUEUE: Final = "SELECT, INSERT, UPDATE"
_PAYMENTS: Final = {WEB: _QUEUE, WORKER: _READ, BILLING: _QUEUE}

PRIVILEGES: Final[Mapping[str, Mapping[str, str]]] = {
    "tenants": {WEB: _CHANGE, WORKER: "SELECT, UPDATE (plan_id, status)"},  # plan changes, and unpaid tenants
    "plans": _MASTER,
    "plan_versions": {WEB: _ADD, WORKER: _READ},
    "api_keys": {WEB: _CHANGE, WORKER: "SELECT, UPDATE (revoked_at, previous_hash, previous_ends_at)"},
    "users": {WEB: _CHANGE},
    "memberships": {WEB: _CHANGE},
    "invitations": {WEB: _CHANGE},
    "console_sessions": _SHARED,
    "sign_in_tries": _SHARED,
    "device_authorizations": _SHARED,
    "base_models": {WEB: _CHANGE, WORKER: "SELECT, UPDATE (input_token_us, output_token_us)"},
    "base_model_names": _MASTER,
    "providers": _MASTER,
    "provider_models": _MASTER,
    "cordons": _MASTER,
    "pools": _MASTER,
    "model_groups": _MASTER,
    "pool_revisions": {WEB: _ADD, WORKER: _READ},
    "pool_decisions": {WEB: _READ, WORKER: "SELECT, INSERT, DELETE"},
    "pool_needs": {WORKER: _CHANGE},
    "adapters": {**_SHARED, BILLING: "SELECT (id, tenant_id, name)"},  # through adapter_names
    "aliases": _SHARED,
    "revisions": _SHARED,
    "upload_files": _SHARED,
    "adapter_revocations": _SHARED,
    "idempotent_responses": _SHARED,
    "batch_files": _SHARED,
    "batches": _SHARED,
    "batch_results": {WORKER: _CHANGE},
    "batch_pauses": _MASTER,
    "outbox": {WEB: _ADD, WORKER: _CHANGE},
    "published_snapshot": {WEB: _READ, WORKER: _CHANGE},
    "audit_events": {WEB: _ADD, WORKER: _ADD, BILLING: _ADD},
    "price_versions": _PRICES,
    "plan_assignments": _PRICES,
    "accounts": _LEDGER,
    "transfers": _LEDGER,
    "entries": _LEDGER,
    "invoices": _LEDGER,
    "invoice_lines": _LEDGER,
    "invoice_credits": _LEDGER,
    "invoice_tax_lines": _LEDGER,
    "invoice_events": _LEDGER,
    "carried_periods": _LEDGER,
    "documents": _LEDGER,
    "credit_notes": _LEDGER,
    "credit_note_tax_lines": _LEDGER,
    "sellers": _PRICES,
    "billing_profiles": _PRICES,
    "tax_rates": _PRICES,
    "subscriptions": {WEB: "SELECT, INSERT, UPDATE", WORKER: _READ, BILLING: "SELECT, INSERT, UPDATE"},
    "tenant_calendars": _PRICES,
    "discounts": _PRICES,
    "discount_ends": _PRICES,
    "price_overrides": _PRICES,
    "withdrawn_price_versions": _PRICES,
    "plan_drafts": {WEB: "SELECT, INSERT, UPDATE", WORKER: _READ},
    "period_states": _LEDGER,
    "resource_hours": _METERED,
    "metered_hours": _METERED,
    "replica_revisions": _METERED,
    "pin_events": {WEB: _ADD, WORKER: _ADD},
    "usage_records": {WEB: _READ, WORKER: _READ, BILLING: _ADD},
    "usage_hours": _SUMS,
    "usage_days": _SUMS,
    "usage_months": _SUMS,
    "usage_replica_hours": _SUMS,
    "usage_amendments": _LEDGER,
    "yielded_usage": {WEB: _READ, BILLING: _ADD},
    "provider_costs": {WEB: _READ, BILLING: "SELECT, INSERT, UPDATE"},  # an exact cost replaces an estimate
    "engine_usage_hours": _SUMS,
    "engine_ended_requests": {WEB: _READ, WORKER: _READ, BILLING: _ADD},
    "reconciliation_runs": {WEB: _READ, WORKER: _READ, BILLING: _ADD},
    "reconciliation_differences": {WEB: _READ, WORKER: _READ, BILLING: _ADD},
    "usage_adjustments": _LEDGER,
    "credit_lots": _LEDGER,
    "credit_entries": _LEDGER,
    "spending_terms": {WEB: _QUEUE, WORKER: _READ, BILLING: _READ},
    "spend_ceilings": {WEB: _QUEUE, WORKER: "SELECT, UPDATE", BILLING: _QUEUE},
    "spend_limits": {WEB: _CHANGE, WORKER: _READ, BILLING: _READ},
    "notification_endpoints": {WEB: _QUEUE, WORKER: _READ, BILLING: "SELECT, UPDATE"},
    "notifications": {WEB: _ADD, WORKER: _ADD, BILLING: _ADD},
    "notification_deliveries": {WEB: _QUEUE, WORKER: _ADD, BILLING: _QUEUE},
    "payment_queues": _PAYMENTS,
    "payment_operations": _PAYMENTS,
    "payment_charges": _PAYMENTS,
    "stripe_events": _PAYMENTS,
    "stripe_events_listed": {WEB: _READ, BILLING: _QUEUE},
    "received_payments": _COSTS,
    "returned_payments": _COSTS,
    "dunning_cases": _PAYMENTS,
    "payment_standings": {WEB: _READ, WORKER: "SELECT, UPDATE", BILLING: _QUEUE},
    "payment_alarms": _PAYMENTS,
    "replica_cost_windows": _COSTS,
    "cost_functions": _COSTS,
    "cost_hours": _COSTS,
    "cost_rows": _COSTS,
    "replica_rates": _PRICES,
    "outside_prices": _PRICES,
}
"""By table and role. A table that is not here is the owner's alone."""

_FUNCTIONS: Final = {
    "billing_add_usage_partitions(timestamptz, int)": BILLING,
    "billing_delete_cost_windows(int, int)": BILLING,
}
_VIEWS: Final = {
    "adapter_names": (WEB, BILLING),
    "batch_queue": (WEB,),
    "outside_models": (WEB, BILLING),
    "pinned_slots": (BILLING,),
    "stored_revisions": (BILLING,),
    "usage_now": (WEB, BILLING),
}


def grant_privileges(engine: "Engine") -> list[str]:
    """Grant each existing role exactly its privileges, in one transaction, after the web role's rows are restricted.
    Returns the roles that do not exist.

    ``engine`` connects as the owner of the tables.
    """
    with engine.connect() as connection:
        found = set(connection.exec_driver_sql("SELECT rolname FROM pg_roles").scalars())
    if WEB in found:
        row_policies.apply(engine, WEB, [table for table, privileges in PRIVILEGES.items() if WEB in privileges])
    with engine.begin() as connection:
        for role in found.intersection(ROLES):
            for statement in _statements(role):
                connection.exec_driver_sql(statement)
    return [role for role in ROLES if role not in found]


def _statements(role: str) -> list[str]:
    """Names and privileges are this module's own constants, so they need no quoting."""
    return [
        f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        *(
            f"GRANT {privileges[role]} ON {table} TO {role}"
            for table, privileges in PRIVILEGES.items()
            if role in privileges
        ),
        *(f"GRANT SELECT ON {view} TO {role}" for view, readers in _VIEWS.items() if role in readers),
        *(f"GRANT EXECUTE ON FUNCTION {name} TO {role}" for name, user in _FUNCTIONS.items() if user == role),
    ]
