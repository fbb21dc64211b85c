"""Previews what a tenant's next invoices would be now. A draft is computed at each request and stored nowhere.

There is one for each ended period that waits for its grace, and one for the running period. A preview changes nothing:
it reads what a close would post.
"""

from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.charges.lines import DraftInvoiceLine
from billing.charges.period_charge import charge
from billing.charges.totals import period_start, read_totals
from billing.invoices.closing import OWN_RATES
from billing.invoices.finalizing import amounts
from billing.invoices.holds import read_hold
from billing.invoices.models import InvoiceHold
from billing.invoices.views import DraftDocument
from billing.periods import Period
from billing.subscriptions.billed_until import billed_until_of
from billing.subscriptions.calendar import BillingCalendar
from billing.tax.calculation import TaxDecision, line_shares
from billing.tax.profiles import read_parties
from billing.tax.sources import TaxSource, TaxUnavailable
from billing.views import InvoiceLineView
from core.db import database_now, unit_of_work


def read_drafts(
    engine: sa.Engine, tenant_id: str, *, grace: timedelta, tax: TaxSource = OWN_RATES
) -> list[DraftDocument]:
    """The tenant's drafts, oldest first. Empty before its first usage. Where the taxes are not known, the draft says why
    and shows none.
    """
    decision, reason = _tax(engine, tenant_id, tax)
    with unit_of_work(engine) as session:
        session.connection().exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        start = period_start(session, tenant_id, billed_until_of(session, tenant_id))
        if start is None:
            return []
        now, hold = database_now(session), read_hold(session, tenant_id)
        return [
            _draft(session, tenant_id, period, decision, now=now, grace=grace, hold=hold, reason=reason)
            for period in _periods(start, now)
        ]


def _tax(engine: sa.Engine, tenant_id: str, tax: TaxSource) -> tuple[TaxDecision, str | None]:
    with unit_of_work(engine) as session:
        parties, at = read_parties(session, tenant_id), database_now(session)
    try:
        return tax.decide(engine, parties, at), None
    except TaxUnavailable as error:
        return TaxDecision(), error.message


def _periods(start: datetime, now: datetime) -> list[Period]:
    calendar = BillingCalendar()
    ends = [*calendar.ends_between(start, now), calendar.period_at(max(start, now)).end]
    return [Period(*bounds) for bounds in zip([start, *ends[:-1]], ends, strict=True)]


def _draft(
    session: Session,
    tenant_id: str,
    period: Period,
    decision: TaxDecision,
    *,
    now: datetime,
    grace: timedelta,
    hold: InvoiceHold | None,
    reason: str | None,
) -> DraftDocument:
    totals, versions = read_totals(session, tenant_id, period)
    made = amounts(charge(totals, versions), [], decision)
    ended = period.end <= now
    held = hold if ended else None
    shares = line_shares([tax.tax_cents for tax in made.taxes], [line.amount_cents for line in made.lines])
    return DraftDocument(
        tenant_id=tenant_id,
        period_start=period.start,
        period_end=period.end,
        ended=ended,
        finalizes_at=period.end + grace,
        currency="usd",
        amount_nanos=made.amount_nanos,
        net_cents=made.net_cents,
        tax_cents=made.tax_cents,
        total_cents=made.net_cents + made.tax_cents,
        lines=tuple(_line(line, share) for line, share in zip(made.lines, shares, strict=True)),
        credits=tuple(made.credits),
        tax_lines=tuple(made.taxes),
        held_because=held.reason if held else reason,
        next_try_at=held.next_try_at if held else None,
    )


def _line(line: DraftInvoiceLine, tax_cents: int) -> InvoiceLineView:
    """A line of a draft has no id yet."""
    return InvoiceLineView(**msgspec.structs.asdict(line), id="", tax_cents=tax_cents)
