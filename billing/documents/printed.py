"""What is printed on an invoice and on a credit note, as text: pure functions of the documents. ``pdf`` draws it."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

import msgspec

from billing.invoices.views import CreditNoteView, InvoiceDocument
from billing.tax.calculation import TaxLine
from billing.tax.parties import Buyer, Seller
from billing.views import LINE_KINDS_IN_WORDS, InvoiceLineView
from core.money import NANOS_PER_CENT, format_usd

_SOURCES: Final = {
    "stripe": "Payment",
    "manual": "Payment",
    "credits": "Paid from prepaid credits",
    "balance": "Paid from the balance",
}
_DESTINATIONS: Final = {"refund": "refund", "balance": "to the balance", "amount_due": "lowers the amount due"}
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


def printed_invoice(document: InvoiceDocument, *, lines_max: int) -> PrintedDocument:
    """An invoice. More than ``lines_max`` lines are summed up by model, and a note says so."""
    invoice = document.invoice
    notes = [tax.note for tax in document.tax_lines if tax.note]
    if len(document.lines) <= lines_max:
        rows = [_row(line) for line in document.lines]
    else:
        rows = _by_model(document.lines)
        notes.append(
            f"This invoice has {len(document.lines):,} lines, summed up here by model. Each line is in the file "
            f"/api/v1/invoices/{invoice.id}.csv."
        )
    return PrintedDocument(
        title="Invoice",
        number=invoice.number,
        facts=(
            ("Invoice number", invoice.number),
            ("Date", _day(invoice.created_at)),
            ("Period", f"{_instant(invoice.period_start)} to {_instant(invoice.period_end)}"),
            ("Status", invoice.status),
            ("Account", invoice.tenant_id),
        ),
        seller=_seller(document.seller),
        buyer=_buyer(document.buyer, invoice.tenant_id),
        rows=rows,
        sums=_invoice_sums(document),
        notes=tuple(dict.fromkeys(notes)),
        footer=f"{invoice.number} · SHA-256 {document.sha256}",
    )


def printed_credit_note(note: CreditNoteView, document: InvoiceDocument, sha256: str) -> PrintedDocument:
    """A credit note of an invoice."""
    line = next((_row(line).description for line in document.lines if line.id == note.line_id), None)
    return PrintedDocument(
        title="Credit note",
        number=note.number,
        facts=(
            ("Credit note number", note.number),
            ("Date", _day(note.created_at)),
            ("For invoice", f"{document.invoice.number} of {_day(document.invoice.created_at)}"),
            ("Account", note.tenant_id),
        ),
        seller=_seller(document.seller),
        buyer=_buyer(document.buyer, note.tenant_id),
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


def _row(line: InvoiceLineView) -> PrintedRow:
    used = "" if line.used_units is None else f" ({_number(line.used_units)} used)"
    return PrintedRow(
        description=_description(line),
        quantity=f"{_number(line.quantity)} {_unit(line.unit, line.quantity)}{used}",
        unit_price=format_usd(line.unit_price_nanos),
        amount=format_usd(line.amount_nanos),
    )


def _description(line: InvoiceLineView) -> str:
    parts = [LINE_KINDS_IN_WORDS[line.kind]]
    if line.description:
        parts.append(line.description)
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
    return ", ".join(parts)


def _discounted(line: InvoiceLineView, list_price_nanos: int) -> str:
    """The list price and the discount of flex usage, whose unit price and amount are net."""
    return f"flex, list price {format_usd(list_price_nanos)} less {format_usd(line.batch_discount_nanos)}"


def _by_model(lines: Iterable[InvoiceLineView]) -> list[PrintedRow]:
    """One row for each model, in the order of the lines, and one for all charges without a model."""
    sums: dict[str, list[int]] = {}
    for line in lines:
        name = line.base_model or ("All models" if line.tier is not None else _NOT_A_MODEL)
        found = sums.setdefault(name, [0, 0])
        found[0] += 1
        found[1] += line.amount_nanos
    return [
        PrintedRow(
            description=name,
            quantity=f"{count:,} line{'' if count == 1 else 's'}",
            unit_price="",
            amount=format_usd(nanos),
        )
        for name, (count, nanos) in sums.items()
    ]


def _invoice_sums(document: InvoiceDocument) -> list[PrintedSum]:
    invoice = document.invoice
    lines = sum(line.amount_nanos for line in document.lines)
    sums = [PrintedSum(label="Sum of lines, exact", amount=format_usd(lines))]
    sums += [
        PrintedSum(label=f"Promotional credit {credit.lot_id}", amount=format_usd(-credit.amount_nanos))
        for credit in document.credits
    ]
    exact = lines - sum(credit.amount_nanos for credit in document.credits)
    if rounding := invoice.net_cents * NANOS_PER_CENT - exact:
        label = "Rounding to cents" if abs(rounding) < NANOS_PER_CENT else "Carried over, and rounding to cents"
        sums.append(PrintedSum(label=label, amount=format_usd(rounding)))
    sums += [
        PrintedSum(label="Net", amount=_cents(invoice.net_cents)),
        *_tax_sums(document.tax_lines),
        PrintedSum(label="Total", amount=_cents(invoice.total_cents), total=True),
    ]
    for payment in document.payments:
        label = f"{_SOURCES[payment.source]} of {_day(payment.created_at)}"
        sums.append(PrintedSum(label=label, amount=_cents(-payment.amount_cents)))
    for note in document.credit_notes:
        label = f"Credit note {note.number}: {_cents(note.total_cents)}, {_DESTINATIONS[note.destination]}"
        sums.append(PrintedSum(label=label, amount=_cents(-note.due_cents)))
    sums += [
        PrintedSum(label=f"{event.kind.replace('_', ' ').capitalize()} on {_day(event.created_at)}", amount="")
        for event in document.events
        if event.kind in {"void", "uncollectible", "recovered"}
    ]
    sums.append(PrintedSum(label="Amount due (US dollars)", amount=_cents(invoice.amount_due_cents), total=True))
    return sums


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
    text = unit.replace("_", " ") if unit != "amount" else ""
    return text if quantity == 1 or not text else f"{text}s"


def _number(value: Decimal) -> str:
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _cents(cents: int) -> str:
    return format_usd(cents * NANOS_PER_CENT)


def _day(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d}"


def _instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d}" if instant.time().isoformat() == "00:00:00" else f"{instant:%Y-%m-%d %H:%M:%S} UTC"
