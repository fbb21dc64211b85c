"""Invoice items and the lines they become. An item belongs to a draft, or waits for the customer's next invoice."""

from typing import Any, Final

from tenora.stripe_simulator import intents
from tenora.stripe_simulator.errors import ApiError, not_simulated, require
from tenora.stripe_simulator.resources import complete
from tenora.stripe_simulator.simulation import Object, Simulation

LINES_MAX: Final = 250
LINES_EMBEDDED: Final = 10


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    require(given, "customer")
    if "amount" not in given:
        raise not_simulated("invoice items without an amount", "amount")
    customer = sim.get("customer", given["customer"], "customer")
    draft = _draft(sim, given["invoice"], customer["id"]) if "invoice" in given else None
    currency = given.get("currency") or (draft["currency"] if draft else customer["currency"] or "usd")
    intents.check_currency(currency)
    if draft and draft["currency"] != currency:
        raise ApiError(
            f"The currency of the invoice item ({currency}) is not that of the invoice ({draft['currency']}).",
            param="currency",
        )
    if draft and len(items_of(sim, draft["id"])) >= LINES_MAX:
        raise ApiError(f"An invoice can have at most {LINES_MAX} invoice items.", param="invoice")
    now = sim.now(customer["id"])
    fields = {
        "amount": given["amount"],
        "currency": currency,
        "customer": customer["id"],
        "date": now,
        "description": given.get("description"),
        "discountable": given.get("discountable", given["amount"] >= 0),
        "discounts": [],
        "invoice": draft["id"] if draft else None,
        "metadata": given.get("metadata") or {},
        "period": given.get("period") or {"start": now, "end": now},
        "proration": False,
        "quantity": 1,
        "quantity_decimal": "1",
        "tax_rates": [],
        "test_clock": customer["test_clock"],
    }
    item = sim.create("invoiceitem", "ii", fields, customer=customer["id"], line=sim.new_id("il"))
    if draft:
        refresh(sim, draft)
    sim.emit("invoiceitem.created", item)
    return item


def _draft(sim: Simulation, invoice_id: str, customer: str) -> Object:
    invoice = sim.get("invoice", invoice_id, "invoice")
    if invoice["customer"] != customer:
        raise ApiError(f"Invoice {invoice_id} does not belong to customer {customer}.", param="invoice")
    if invoice["status"] != "draft":
        raise ApiError(
            f"This invoice is no longer editable: it is {invoice['status']}.",
            code="invoice_not_editable",
            param="invoice",
        )
    return invoice


def list_all(sim: Simulation, given: dict[str, Any]) -> Object:
    filters = dict(given)
    found = sim.store.select("invoiceitem")
    if "pending" in filters:
        pending = filters.pop("pending")
        found = [each for each in found if (each["invoice"] is None) == pending]
    return sim.page("invoiceitem", "/v1/invoiceitems", filters, found=found)


def items_of(sim: Simulation, invoice_id: str) -> list[Object]:
    """The items of an invoice in the order of their creation."""
    return sim.store.select("invoiceitem", invoice=invoice_id)[::-1]


def take_pending(sim: Simulation, invoice: Object) -> None:
    """Put the customer's waiting items onto a draft."""
    for item in sim.store.select("invoiceitem", customer=invoice["customer"], currency=invoice["currency"])[::-1]:
        if item["invoice"] is None:
            item["invoice"] = invoice["id"]
            sim.save(item)


def _line(sim: Simulation, item: Object) -> Object:
    details = {"invoice_item": item["id"], "proration": False, "subscription": None, "proration_details": None}
    return complete(
        "line_item",
        {
            "id": sim.store.hidden(item["id"])["line"],
            "amount": item["amount"],
            "currency": item["currency"],
            "description": item["description"],
            "discount_amounts": [],
            "discountable": item["discountable"],
            "discounts": [],
            "invoice": item["invoice"],
            "livemode": False,
            "metadata": item["metadata"],
            "parent": {"type": "invoice_item_details", "invoice_item_details": details},
            "period": item["period"],
            "pretax_credit_amounts": [],
            "quantity": item["quantity"],
            "quantity_decimal": item["quantity_decimal"],
            "subtotal": item["amount"],
            "taxes": [],
        },
    )


def refresh(sim: Simulation, invoice: Object) -> Object:
    """Add a draft up again after its lines changed."""
    items = items_of(sim, invoice["id"])
    total = sum(item["amount"] for item in items)
    shown = [_line(sim, item) for item in items[:LINES_EMBEDDED]]
    invoice["lines"] |= {"data": shown, "has_more": len(items) > LINES_EMBEDDED}
    invoice |= {"subtotal": total, "subtotal_excluding_tax": total, "total": total, "total_excluding_tax": total}
    invoice |= {"amount_due": max(0, total), "amount_remaining": max(0, total)}
    return sim.save(invoice)
