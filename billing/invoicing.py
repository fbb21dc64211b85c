"""Closes a period: uninvoiced usage becomes immutable invoices with lines, one per tenant, in the caller's transaction.

Records are claimed first and added up by their claim, so usage that commits meanwhile waits for the next invoice.
"""

from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger
from billing.invoice_lines import UsageTotal, lines_of
from billing.invoice_queries import invoice_view
from billing.locks import serialize_decision
from billing.models import Invoice, InvoiceLine, PriceVersion, UsageRecord
from billing.periods import Period, aware, next_period
from billing.views import InvoiceView
from core.contracts.grants import Prices
from core.db import database_now
from core.errors import InvalidRequest
from core.ids import new_id
from core.money import cents_to_nanos


def close_period(session: Session, until: datetime | None = None) -> list[InvoiceView]:
    """One invoice for every tenant with uninvoiced usage settled before ``until`` (exclusive; None means now).

    Closes are serialized, so invoice numbers have no gaps and the second of two closes finds nothing left. Late usage
    goes onto the next invoice. Usage without any quantity waits until there is some to invoice. Raises InvalidRequest
    for an invalid ``until``, and Unavailable when another close holds the lock for too long.
    """
    serialize_decision(session, "the close of the billing period")
    now = database_now(session)
    until = now if until is None else aware(until, "until")
    if until > now:
        raise InvalidRequest(
            f"until is {until.isoformat()}, in the future; usage up to then is not known yet. It is {now.isoformat()}.",
            param="until",
        )
    number = session.exec(select(sa.func.coalesce(sa.func.max(Invoice.number), 0))).one()
    closed = []
    for tenant_id, period in _due(session, until):
        number += 1
        closed.append(_invoice(session, tenant_id, period, number, now))
    return closed


def _due(session: Session, until: datetime) -> list[tuple[str, Period]]:
    """Tenants to invoice, and their periods."""
    quantity = col(UsageRecord.input_tokens) + col(UsageRecord.output_tokens) + col(UsageRecord.kv_page_ms)
    usage = session.exec(
        select(UsageRecord.tenant_id, sa.func.min(UsageRecord.settled_at))
        .where(col(UsageRecord.invoice_id).is_(None), UsageRecord.settled_at < until)
        .group_by(UsageRecord.tenant_id)
        .having(sa.func.bool_or(quantity > 0))
        .order_by(UsageRecord.tenant_id)
    ).all()
    previous: dict[str, datetime] = dict(
        session.exec(
            select(Invoice.tenant_id, sa.func.max(Invoice.period_end))
            .where(col(Invoice.tenant_id).in_([tenant_id for tenant_id, _ in usage]))
            .group_by(Invoice.tenant_id)
        ).all()
    )
    periods = (
        (tenant_id, next_period(previous_end=previous.get(tenant_id), first_usage=first, until=until))
        for tenant_id, first in usage
    )
    return [(tenant_id, period) for tenant_id, period in periods if period is not None]


def _invoice(session: Session, tenant_id: str, period: Period, number: int, now: datetime) -> InvoiceView:
    invoice_id = new_id("inv")
    session.exec(
        sa.update(UsageRecord)
        .where(
            col(UsageRecord.tenant_id) == tenant_id,
            col(UsageRecord.invoice_id).is_(None),
            col(UsageRecord.settled_at) < period.end,
        )
        .values(invoice_id=invoice_id)
        .execution_options(synchronize_session=False)
    )
    lines = lines_of(_totals(session, invoice_id))
    assert lines, "a tenant that is due has used something"
    amount_nanos = sum(line.amount_nanos for line in lines)
    total_cents = sum(line.amount_cents for line in lines)
    invoice = Invoice(
        id=invoice_id,
        number=number,
        tenant_id=tenant_id,
        period_start=period.start,
        period_end=period.end,
        status="finalised",
        currency="usd",
        total_cents=total_cents,
        amount_nanos=amount_nanos,
        created_at=now,
    )
    session.add(invoice)
    session.flush()  # before its lines: nothing else orders the inserts of two unrelated classes
    session.exec(
        sa.insert(InvoiceLine),
        params=[
            {"id": new_id("il"), "invoice_id": invoice_id, "position": position, **msgspec.structs.asdict(line)}
            for position, line in enumerate(lines, start=1)
        ],
    )
    made = ledger.post(
        session,
        [
            ledger.invoice_posting(
                invoice_id=invoice_id,
                tenant_id=tenant_id,
                amount_nanos=amount_nanos,
                billed_nanos=cents_to_nanos(total_cents),
            )
        ],
    )
    assert invoice_id in made, "a new invoice has no transfer yet"
    return invoice_view(invoice)


def _totals(session: Session, invoice_id: str) -> list[UsageTotal]:
    """The sums of the invoice's records, by model and price version, base models before their adapters."""
    keys = (col(UsageRecord.base_model), col(UsageRecord.adapter_id), col(UsageRecord.price_version_id))
    fresh = col(UsageRecord.input_tokens) - col(UsageRecord.cached_tokens)
    sums = {
        "input_tokens": fresh,
        "input_nanos": col(UsageRecord.input_nanos),
        "cached_tokens": col(UsageRecord.cached_tokens),
        "cached_input_nanos": col(UsageRecord.cached_input_nanos),
        "output_tokens": col(UsageRecord.output_tokens),
        "output_nanos": col(UsageRecord.output_nanos),
        "kv_page_ms": col(UsageRecord.kv_page_ms),
        "kv_nanos": col(UsageRecord.kv_nanos),
    }
    counts = {
        "input_requests": fresh,
        "cached_requests": col(UsageRecord.cached_tokens),
        "output_requests": col(UsageRecord.output_tokens),
        "kv_requests": col(UsageRecord.kv_page_ms),
    }
    request = sa.func.split_part(col(UsageRecord.request_id), ":", 1)  # a rest counts as its request, without the mark
    statement = (
        sa.select(
            *keys,
            *(sa.cast(sa.func.sum(column), sa.BigInteger).label(name) for name, column in sums.items()),
            *(sa.func.count(sa.distinct(request)).filter(column > 0).label(name) for name, column in counts.items()),
        )
        .where(col(UsageRecord.invoice_id) == invoice_id)
        .group_by(*keys)
        .order_by(keys[0], keys[1].asc().nulls_first(), keys[2])
    )
    rows = session.connection().execute(statement).mappings().all()
    versions = session.exec(
        select(PriceVersion).where(col(PriceVersion.id).in_({row["price_version_id"] for row in rows}))
    )
    prices = {version.id: msgspec.convert(version, Prices, from_attributes=True) for version in versions}
    return [UsageTotal(**row, prices=prices[row["price_version_id"]]) for row in rows]
