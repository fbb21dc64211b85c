"""What is printed on an invoice and on a credit note, as text: pure functions of the documents. ``pdf`` draws it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Final

import msgspec

from billing.charges.lines import LINE_KINDS_IN_WORDS
from billing.invoices.views import CreditNoteView, InvoiceDocument, InvoiceLineView
from billing.tax.calculation import TaxLine
from billing.tax.parties import Buyer, Seller
from core.money import NANOS_PER_CENT, format_usd, round_to_cents

_PAID_AT_ONCE: Final = {"credits": "Paid from prepaid credits", "balance": "Paid from the balance"}
"""What pays when the invoice is made. Whatever happens later is not printed, so a document never changes."""
_PER_MILLION: Final = frozenset({"token", "page_second"})
_MILLION: Final = 1_000_000
_DAY: Final = timedelta(days=1)
_NOT_A_MODEL: Final = "Fees, discounts and other charges"


class PrintedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of lines."""

    description: str
    quantity: str
    unit_price: str
    amount: str


class PrintedSum(msgspec.Struct, frozen=True, kw_only=True):
    """A row below the table. ``total`` marks the ones in bold."""

    label: str
    amount: str
    total: bool = False


class PrintedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document as text, in the order in which it is printed."""

    title: str
    number: str
    facts: Sequence[tuple[str, str]]
    seller: Sequence[str]
    buyer: Sequence[str]
    rows: Sequence[PrintedRow]
    sums: Sequence[PrintedSum]
    notes: Sequence[str]
    footer: str
    terms: Sequence[str] = ()


def printed_invoice(invoice: InvoiceDocument, *, lines_max: int) -> PrintedDocument:
    """An invoice as it was made. More than ``lines_max`` lines are summed up by model, and a note says so."""
    notes = [tax.note for tax in invoice.tax_lines if tax.note]
    if len(invoice.lines) <= lines_max:
        rows = [_row(line) for line in invoice.lines]
    else:
        rows = _by_model(invoice.lines)
        notes.append(
            f"This invoice has {len(invoice.lines):,} lines, summed up here by model. Each line is in the file "
            f"/api/v1/invoices/{invoice.id}.csv."
        )
    return PrintedDocument(
        title="Invoice",
        number=invoice.number,
        facts=_facts(invoice),
        seller=_seller(invoice.seller),
        buyer=_buyer(invoice.buyer, invoice.tenant_id),
        rows=rows,
        sums=_invoice_sums(invoice),
        notes=tuple(dict.fromkeys(notes)),
        footer=f"{invoice.number} · SHA-256 {invoice.sha256}",
        terms=_terms(invoice),
    )


def printed_credit_note(note: CreditNoteView, invoice: InvoiceDocument, sha256: str) -> PrintedDocument:
    """A credit note of an invoice."""
    line = next((_row(line).description for line in invoice.lines if line.id == note.line_id), None)
    return PrintedDocument(
        title="Credit note",
        number=note.number,
        facts=(
            ("Credit note number", note.number),
            ("Date", _day(note.created_at)),
            ("For invoice", f"{invoice.number} of {_day(invoice.created_at)}"),
        ),
        seller=_seller(invoice.seller),
        buyer=_buyer(invoice.buyer, note.tenant_id),
        rows=(
            PrintedRow(
                description=f"Credit: {note.reason}" + (f" ({line})" if line else ""),
                quantity="",
                unit_price="",
                amount=_cents(note.net_cents),
            ),
        ),
        sums=(
            PrintedSum(label="Net", amount=_cents(note.net_cents)),
            *_tax_sums(note.tax_lines),
            PrintedSum(label="Total credited", amount=_cents(note.total_cents), total=True),
            *(
                PrintedSum(label=label, amount=_cents(cents))
                for label, cents in (
                    ("Lowers the amount due", note.due_cents),
                    ("To the balance", note.balance_cents),
                    ("Refund", note.refund_cents),
                )
                if cents
            ),
        ),
        notes=tuple(dict.fromkeys(tax.note for tax in note.tax_lines if tax.note)),
        footer=f"{note.number} · SHA-256 {sha256}",
    )


def _facts(invoice: InvoiceDocument) -> list[tuple[str, str]]:
    buyer = invoice.buyer
    facts = [
        ("Invoice number", invoice.number),
        ("Date", _day(invoice.created_at)),
        ("Due date", "" if invoice.due_on is None else f"{invoice.due_on:%Y-%m-%d}"),
        ("Period", _days(invoice.period_start, invoice.period_end)),
        ("Your order number", (buyer and buyer.order_number) or ""),
    ]
    return [fact for fact in facts if fact[1]]


def _terms(invoice: InvoiceDocument) -> list[str]:
    """When and how to pay. Nothing where nothing was due."""
    due_cents = _due_at_first(invoice)
    if due_cents <= 0 or invoice.due_on is None:
        return []
    days = (invoice.due_on - invoice.created_at.astimezone(UTC).date()).days
    within = "on receipt" if days == 0 else f"within {days} day{'' if days == 1 else 's'}, by {invoice.due_on:%Y-%m-%d}"
    how = () if invoice.seller is None else invoice.seller.how_to_pay
    return [f"Payable {within}. Please name {invoice.number} with your payment.", *how]


def _row(line: InvoiceLineView) -> PrintedRow:
    used = "" if line.used_units is None else f" ({_number(line.used_units)} used)"
    is_amount = line.unit == "amount"
    return PrintedRow(
        description=_description(line),
        quantity="" if is_amount else f"{_number(line.quantity)} {_unit(line.unit, line.quantity)}{used}",
        unit_price="" if is_amount else _price(line.unit, line.unit_price_nanos),
        amount=_cents(line.amount_cents),
    )


def _price(unit: str, nanos: int) -> str:
    """A price of a million tokens, or of one of a larger unit."""
    if unit in _PER_MILLION:
        return f"{format_usd(nanos * _MILLION)} per million"
    return format_usd(nanos)


def _description(line: InvoiceLineView) -> str:
    kind = LINE_KINDS_IN_WORDS[line.kind]
    parts = [kind] if line.description is None else [line.description]
    if line.description is not None and not line.description.startswith(kind):
        parts.insert(0, kind)
    if line.base_model is not None:
        parts.append(line.base_model)
    elif line.tier is not None:
        parts.append("all models")
    if line.adapter_id is not None:
        parts.append(f"adapter {line.adapter_name or line.adapter_id}")
    if line.rank_class is not None:
        parts.append(f"rank class {line.rank_class}")
    if line.tier is not None:
        parts.append(f"tier {line.tier}")
    if line.service_tier == "flex":
        parts.append("flex" if line.list_price_nanos is None else _discounted(line, line.list_price_nanos))
    if line.late_for is not None:
        parts.append(f"used in {line.late_for:%Y-%m}, recorded late")
    if line.covers_from is not None and line.covers_until is not None:
        parts.append(_days(line.covers_from, line.covers_until))
    return ", ".join(parts)


def _discounted(line: InvoiceLineView, list_price_nanos: int) -> str:
    """The list price and the discount of flex usage, whose unit price and amount are net."""
    less = _cents(round_to_cents(line.batch_discount_nanos))
    return f"flex, list price {_price(line.unit, list_price_nanos)}, less {less}"


def _by_model(lines: Iterable[InvoiceLineView]) -> list[PrintedRow]:
    """One row for each model, in the order of the lines, and one for all charges without a model."""
    sums: dict[str, list[int]] = {}
    for line in lines:
        name = line.base_model or ("All models" if line.tier is not None else _NOT_A_MODEL)
        found = sums.setdefault(name, [0, 0])
        found[0] += 1
        found[1] += line.amount_cents
    return [
        PrintedRow(
            description=name,
            quantity=f"{count:,} line{'' if count == 1 else 's'}",
            unit_price="",
            amount=_cents(cents),
        )
        for name, (count, cents) in sums.items()
    ]


def _invoice_sums(invoice: InvoiceDocument) -> list[PrintedSum]:
    sums = []
    if invoice.credits:
        promotional_cents = sum(credit.amount_cents for credit in invoice.credits)
        sums += [
            PrintedSum(label="Sum of lines", amount=_cents(invoice.net_cents + promotional_cents)),
            PrintedSum(label="Promotional credit", amount=_cents(-promotional_cents)),
        ]
    sums += [
        PrintedSum(label="Net", amount=_cents(invoice.net_cents)),
        *_tax_sums(invoice.tax_lines),
        PrintedSum(label="Total", amount=_cents(invoice.total_cents), total=True),
    ]
    sums += [
        PrintedSum(label=_PAID_AT_ONCE[payment.source], amount=_cents(-payment.amount_cents))
        for payment in invoice.payments
        if payment.source in _PAID_AT_ONCE
    ]
    sums.append(PrintedSum(label="Amount due (US dollars)", amount=_cents(_due_at_first(invoice)), total=True))
    return sums


def _due_at_first(invoice: InvoiceDocument) -> int:
    """What was due when the invoice was made."""
    at_once = sum(payment.amount_cents for payment in invoice.payments if payment.source in _PAID_AT_ONCE)
    return invoice.total_cents - at_once


def _tax_sums(taxes: Iterable[TaxLine]) -> list[PrintedSum]:
    return [
        PrintedSum(
            label=f"{tax.name} {_number(Decimal(tax.rate_ppm).scaleb(-4))} % on {_cents(tax.base_cents)}",
            amount=_cents(tax.tax_cents),
        )
        for tax in taxes
    ]


def _seller(seller: Seller | None) -> list[str]:
    if seller is None:
        return []
    return _party(seller.legal_name, seller.address, seller.country, seller.vat_id)


def _buyer(buyer: Buyer | None, tenant_id: str) -> list[str]:
    if buyer is None:
        return [tenant_id]
    return [
        *_party(buyer.legal_name, buyer.address, buyer.country, buyer.vat_id),
        *([buyer.email] if buyer.email else []),
    ]


def _party(name: str, address: Iterable[str], country: str | None, vat_id: str | None) -> list[str]:
    return [name, *address, *([country] if country else []), *([f"VAT id {vat_id}"] if vat_id else [])]


def _unit(unit: str, quantity: Decimal) -> str:
    text = {"gb_hour": "GB-hour"}.get(unit, unit.replace("_", "-"))
    return text if quantity == 1 else f"{text}s"


def _number(value: Decimal) -> str:
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _cents(cents: int) -> str:
    return format_usd(cents * NANOS_PER_CENT)


def _day(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d}"


def _days(start: datetime, end: datetime) -> str:
    """A time by its first and its last day, where both are whole days of UTC, else by its instants."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    if start.time() == end.time() == time():
        return f"{_day(start)} to {_day(end - _DAY)}"
    return f"{start:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC"
