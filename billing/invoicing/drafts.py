"""Previews what a tenant's next invoices would be now. A draft is computed at each request and stored nowhere.

There is one for each ended period that waits for its grace, and one for the running period. Each draft has the credit
that the ones before it leave. A preview changes nothing: it reads what a close would post.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from billing.charges.inputs import period_start, read_contract, read_state
from billing.charges.lines import DraftInvoiceLine
from billing.charges.period import charge_parts
from billing.credits.burning import CreditPlan
from billing.invoices import carrying
from billing.invoices.queries import batch_discount_nanos
from billing.invoices.views import DraftDocument, InvoiceLineView
from billing.invoicing.finalizing import Amounts, amounts
from billing.subscriptions.billed_until import billed_until_of
from billing.tax.calculation import line_shares
from billing.tax.profiles import read_parties
from billing.tax.rate_table import tax_between
from core.db import database_now, unit_of_work
from core.periods import Period


class _Situation(NamedTuple):
    """What all drafts of a tenant have in common."""

    now: datetime
    grace: timedelta
    warnings: tuple[str, ...]


def read_drafts(engine: sa.Engine, tenant_id: str, *, grace: timedelta) -> list[DraftDocument]:
    """The tenant's drafts, oldest first. Empty before its first plan."""
    with unit_of_work(engine) as session:
        session.connection().exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        start = period_start(session, tenant_id, billed_until_of(session, tenant_id))
        if start is None:
            return []
        parties, at = read_parties(session, tenant_id)
        situation = _Situation(database_now(session), grace, parties.warnings())
        tax = tax_between(session, parties, at)
        contract, state = read_contract(session, tenant_id), read_state(session, tenant_id, start)
        waiting = carrying.read_waiting(session, tenant_id)
        credit = CreditPlan(session, tenant_id)
        drafts = []
        for period in contract.terms.calendars.periods_from(start, situation.now):
            ended = period.end <= situation.now
            charged = charge_parts(session, tenant_id, contract, period, state, closing=ended)
            lines = carrying.collect(charged.lines, waiting, scheduled=False).lines
            made = amounts(lines, credit.pay_promotional(period, lines), tax)
            credit.pay_due(period, lines, made.net_cents + made.tax_cents)
            drafts.append(_draft(tenant_id, period, made, situation))
            state, waiting = charged.state, carrying.NOTHING
        return drafts


def _draft(tenant_id: str, period: Period, made: Amounts, situation: _Situation) -> DraftDocument:
    ended = period.end <= situation.now
    shares = line_shares([tax.tax_cents for tax in made.taxes], [line.amount_cents for line in made.lines])
    return DraftDocument(
        tenant_id=tenant_id,
        period_start=period.start,
        period_end=period.end,
        ended=ended,
        finalizes_at=period.end + situation.grace,
        currency="usd",
        amount_nanos=made.amount_nanos,
        net_cents=made.net_cents,
        tax_cents=made.tax_cents,
        total_cents=made.net_cents + made.tax_cents,
        lines=tuple(_line(line, share) for line, share in zip(made.lines, shares, strict=True)),
        credits=tuple(made.credits),
        tax_lines=tuple(made.taxes),
        warnings=situation.warnings,
    )


def _line(line: DraftInvoiceLine, tax_cents: int) -> InvoiceLineView:
    """A line of a draft has no id yet."""
    return InvoiceLineView(
        **msgspec.structs.asdict(line),
        id="",
        tax_cents=tax_cents,
        batch_discount_nanos=batch_discount_nanos(line.quantity, line.list_price_nanos, line.amount_nanos),
    )
