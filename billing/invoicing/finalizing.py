"""Turns the lines of a period into a final invoice: credits, tax, postings, events, collection and number, in the
caller's transaction, which then only has to commit.

The order: promotional credits, rounding of the net, tax, and then what pays at once: paid credits and the balance. The
notification comes after the number, which it names.
"""

from collections.abc import Sequence
from datetime import UTC
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing import ledger
from billing.charges.lines import DraftInvoiceLine
from billing.credits import burning
from billing.credits.views import CreditUse
from billing.invoices import balance
from billing.invoices.events import append, lock_invoices
from billing.invoices.models import Invoice, InvoiceCredit, InvoiceLine, InvoiceTaxLine
from billing.invoices.numbering import seal
from billing.invoices.queries import invoice_view
from billing.invoices.statuses import EventChange, InvoiceState
from billing.invoices.views import AppliedCredit, InvoiceKind, InvoiceView
from billing.ledger import AccountRef
from billing.notifications.outbox import notify
from billing.payments import dunning, outbox
from billing.payments.operations import CollectInvoice
from billing.tax.calculation import TaxDecision, TaxLine, tax_lines
from billing.tax.profiles import read_parties
from billing.tax.rate_table import tax_between
from core.ids import new_id
from core.money import cents_to_nanos, distribute_cents
from core.periods import Period


class Amounts(NamedTuple):
    """An invoice's parts with their cents."""

    lines: list[DraftInvoiceLine]
    credits: list[AppliedCredit]
    taxes: list[TaxLine]

    @property
    def amount_nanos(self) -> int:
        return sum(line.amount_nanos for line in self.lines)

    @property
    def credited_nanos(self) -> int:
        return sum(credit.amount_nanos for credit in self.credits)

    @property
    def net_cents(self) -> int:
        return sum(line.amount_cents for line in self.lines) - sum(credit.amount_cents for credit in self.credits)

    @property
    def tax_cents(self) -> int:
        return sum(tax.tax_cents for tax in self.taxes)


def amounts(lines: Sequence[DraftInvoiceLine], uses: Sequence[CreditUse], decision: TaxDecision) -> Amounts:
    """Round the net once, share its cents out over lines and credits, and add the tax. Pure."""
    nanos = [*(line.amount_nanos for line in lines), *(-use.amount_nanos for use in uses)]
    cents = distribute_cents(nanos)
    priced = [msgspec.structs.replace(line, amount_cents=share) for line, share in zip(lines, cents, strict=False)]
    applied = [
        AppliedCredit(lot_id=use.lot_id, amount_nanos=use.amount_nanos, amount_cents=-share)
        for use, share in zip(uses, cents[len(lines) :], strict=True)
    ]
    return Amounts(priced, applied, tax_lines(decision, sum(cents)))


def finalize(
    session: Session,
    tenant_id: str,
    period: Period,
    lines: Sequence[DraftInvoiceLine],
    *,
    kind: InvoiceKind,
    carried_nanos: int = 0,
) -> InvoiceView:
    """Write the final invoice of these lines. The caller holds the tenant's subscription and commits next."""
    lock_invoices(session, tenant_id)
    parties, at = read_parties(session, tenant_id)
    invoice_id = new_id("inv")
    uses = burning.apply_promotional(session, tenant_id, period, lines, invoice_id=invoice_id)
    made = amounts(lines, uses, tax_between(session, parties, at))
    due_on = parties.due_on(at.astimezone(UTC).date())
    invoice = Invoice(
        id=invoice_id,
        tenant_id=tenant_id,
        kind=kind,
        period_start=period.start,
        period_end=period.end,
        currency="usd",
        amount_nanos=made.amount_nanos,
        carried_nanos=carried_nanos,
        net_cents=made.net_cents,
        tax_cents=made.tax_cents,
        total_cents=made.net_cents + made.tax_cents,
        seller=_builtins(parties.seller),
        buyer=_builtins(parties.buyer),
        created_at=at,
        due_on=due_on,
    )
    _write_parts(session, invoice_id, made)
    session.add(invoice)
    session.flush()
    ledger.post(session, "invoice", _legs(tenant_id, made), invoice_id=invoice.id)
    state = _apply_credits(session, invoice, period, made.lines)
    if state.amount_due_cents > 0 and parties.by_transfer:
        dunning.await_transfer(session, tenant_id, invoice.id, due_on)
    elif state.amount_due_cents > 0:
        outbox.enqueue(session, tenant_id, CollectInvoice(invoice_id=invoice.id))
    number = seal(session, "invoice", invoice.id, tenant_id)
    _tell(session, invoice, number)
    return invoice_view(invoice, number, state)


def _legs(tenant_id: str, made: Amounts) -> dict[AccountRef, int]:
    """An invoice turns unbilled usage into a receivable of whole cents, and owes its tax. The rounding has its own
    account.
    """
    amount_nanos, net_nanos = made.amount_nanos - made.credited_nanos, cents_to_nanos(made.net_cents)
    legs = {
        AccountRef("usage_unbilled", tenant_id): -amount_nanos,
        AccountRef("receivable", tenant_id): cents_to_nanos(made.net_cents + made.tax_cents),
        AccountRef("rounding"): amount_nanos - net_nanos,
    }
    return legs | ({AccountRef("tax_payable"): -cents_to_nanos(made.tax_cents)} if made.tax_cents else {})


def _tell(session: Session, invoice: Invoice, number: str) -> None:
    """Tell the tenant, unless the invoice is over nothing."""
    if invoice.total_cents:
        notify(
            session,
            tenant_id=invoice.tenant_id,
            event_type="invoice.finalized",
            data={"invoice_id": invoice.id, "number": number, "total_cents": invoice.total_cents},
            dedupe_key=f"invoice.finalized:{invoice.id}",
        )


def _apply_credits(
    session: Session, invoice: Invoice, period: Period, lines: Sequence[DraftInvoiceLine]
) -> InvoiceState:
    """The first events: what credits and the balance pay at once, then the invoice is open, or paid."""
    finalized = EventChange(kind="finalized", amount_cents=invoice.total_cents)
    state = append(session, invoice.id, InvoiceState(), finalized)
    if state.amount_due_cents > 0:
        paid_cents = burning.apply_paid(
            session, invoice.tenant_id, period, lines, invoice_id=invoice.id, due_cents=state.amount_due_cents
        )
        if paid_cents:
            change = EventChange(kind="payment", amount_cents=paid_cents)
            state = append(session, invoice.id, state, change, source="credits")
    state = balance.apply(session, invoice, state)
    return append(session, invoice.id, state, EventChange(kind="open"))


def _write_parts(session: Session, invoice_id: str, made: Amounts) -> None:
    session.exec(
        sa.insert(InvoiceLine),
        params=[
            {
                "id": new_id("il"),
                "invoice_id": invoice_id,
                "position": position,
                **msgspec.structs.asdict(line),
            }
            for position, line in enumerate(made.lines, start=1)
        ],
    )
    for table, parts in ((InvoiceCredit, made.credits), (InvoiceTaxLine, made.taxes)):
        if parts:
            session.exec(
                sa.insert(table),
                params=[
                    {"invoice_id": invoice_id, "position": position, **msgspec.structs.asdict(part)}
                    for position, part in enumerate(parts, start=1)
                ],
            )


def _builtins(party: msgspec.Struct | None) -> dict[str, object] | None:
    return None if party is None else msgspec.to_builtins(party)
