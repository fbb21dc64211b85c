"""Everything the control plane may call: prices, plan assignments, usage, invoices, period close, reconciliation.

Each function works inside the caller's open session and never commits; how it works is told in the module it calls.
"""

from collections.abc import Collection
from datetime import datetime

import redis as redis_client
from sqlmodel import Session

from billing import invoice_queries as invoice_reader
from billing import invoicing, usage_queries
from billing import prices as price_book
from billing import reconciliation as auditor
from billing.views import Bucket, GroupBy, InvoiceDetail, InvoiceView, PriceView, Reconciliation, UsageBucket
from core.contracts.grants import Prices


def add_price_version(
    session: Session, *, plan_id: str, prices: Prices, effective_from: datetime | None = None
) -> PriceView:
    """Add what ``plan_id`` charges from ``effective_from`` on; None is now, or since ever for a plan's first version.

    Raises InvalidRequest for a price out of range or an instant in the past, Conflict for an instant already taken.
    """
    return price_book.add_version(session, plan_id=plan_id, prices=prices, effective_from=effective_from)


def list_price_versions(session: Session, *, plan_id: str) -> list[PriceView]:
    """Every version of a plan, the latest ``effective_from`` first."""
    return price_book.list_versions(session, plan_id=plan_id)


def assign_plan(session: Session, *, tenant_id: str, plan_id: str) -> None:
    """Price the tenant's usage by ``plan_id`` from now on (its first plan: since ever). Repeats change nothing."""
    price_book.assign_plan(session, tenant_id=tenant_id, plan_id=plan_id)


def usage(
    session: Session,
    *,
    tenant_id: str,
    start: datetime,
    end: datetime,
    bucket: Bucket,
    group_by: GroupBy | None = None,
) -> list[UsageBucket]:
    """One tenant's usage settled in ``[start, end)``, by UTC bucket and group; buckets without usage are left out.

    Raises InvalidRequest when the range is naive, empty, or holds more than ``USAGE_BUCKETS_MAX`` buckets.
    """
    return usage_queries.usage(session, tenant_id=tenant_id, start=start, end=end, bucket=bucket, group_by=group_by)


def month_tokens(session: Session, tenant_id: str, month: str) -> int:
    """Input plus output tokens of the UTC month ``"YYYY-MM"``, as the monthly quota counts them."""
    return usage_queries.month_tokens(session, tenant_id, month)


def charged_before_month(session: Session, tenant_ids: Collection[str]) -> dict[str, int]:
    """Nanodollars that each of these tenants was charged before the present UTC month, by the database's clock."""
    return usage_queries.charged_before_month(session, tenant_ids)


def list_invoices(
    session: Session, *, tenant_id: str | None, after: str | None = None, limit: int = 50
) -> list[InvoiceView]:
    """Newest first; ``tenant_id`` None is every tenant's (admins only). ``after`` is the last id of the page before."""
    return invoice_reader.list_invoices(session, tenant_id=tenant_id, after=after, limit=limit)


def get_invoice(session: Session, *, invoice_id: str, tenant_id: str | None) -> InvoiceDetail | None:
    """An invoice with its lines; None when it is absent or belongs to another tenant than ``tenant_id``."""
    return invoice_reader.get_invoice(session, invoice_id=invoice_id, tenant_id=tenant_id)


def close_period(session: Session, until: datetime | None = None) -> list[InvoiceView]:
    """Invoice every tenant's uninvoiced usage settled before ``until`` (exclusive; None is the database's now).

    With nothing new it makes nothing. Raises InvalidRequest for an instant that is naive or in the future, and
    Unavailable when another close holds the lock for too long.
    """
    return invoicing.close_period(session, until)


def reconcile(session: Session, redis: redis_client.Redis) -> Reconciliation:
    """Compare the engines' counters, the ledger and the invoices. Raises Unavailable when Redis does not answer."""
    return auditor.reconcile(session, redis)
