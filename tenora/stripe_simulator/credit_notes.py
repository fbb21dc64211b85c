"""Credit notes: they make an open invoice cheaper; of a paid one they say where the money goes."""

from typing import Any

from tenora.stripe_simulator import charges, customers, intents, invoices
from tenora.stripe_simulator.errors import ApiError, not_simulated
from tenora.stripe_simulator.resources import complete
from tenora.stripe_simulator.simulation import Object, Simulation


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    invoice = sim.get("invoice", given["invoice"], "invoice")
    if invoice["status"] not in ("open", "paid"):
        raise ApiError(
            f"Credit notes can only be issued for open or paid invoices; this one is {invoice['status']}.",
            param="invoice",
        )
    lines = _lines(sim, given)
    total = sum(line["amount"] for line in lines)
    left = _left(sim, invoice)
    if not 0 < total <= left:
        raise ApiError(
            f"The credit note amount ({total}) must be positive and not greater than what is left to credit on the"
            f" invoice ({left}).",
            param="amount" if "amount" in given else "lines",
        )
    before = min(total, invoice["amount_remaining"]) if invoice["status"] == "open" else 0
    after = total - before
    _check_destinations(given, after)
    note = _store(sim, given, invoice, lines, before=before, after=after)
    if given.get("credit_amount"):
        entry = customers.change_balance(
            sim, invoice["customer"], -given["credit_amount"], "credit_note",
            currency=invoice["currency"], credit_note=note["id"], invoice=invoice["id"],
        )  # fmt: skip
        note["customer_balance_transaction"] = entry["id"]
        sim.save(note)
    _apply(sim, invoice, before, after)
    sim.emit("credit_note.created", note)
    return note


def _left(sim: Simulation, invoice: Object) -> int:
    """What is not yet credited."""
    earlier = sim.store.select("credit_note", invoice=invoice["id"], status="issued")
    total: int = invoice["total"] - sum(each["total"] for each in earlier)
    return total


def _store(
    sim: Simulation, given: dict[str, Any], invoice: Object, lines: list[Object], *, before: int, after: int
) -> Object:
    note_id, total = sim.new_id("cn"), before + after
    refunds = _refunds(sim, given, invoice)
    kinds = {(True, False): "pre_payment", (False, True): "post_payment", (True, True): "mixed"}
    fields = {
        "id": note_id,
        "amount": total,
        "amount_shipping": 0,
        "currency": invoice["currency"],
        "customer": invoice["customer"],
        "discount_amount": 0,
        "discount_amounts": [],
        "invoice": invoice["id"],
        "lines": {"object": "list", "data": lines, "has_more": False, "url": f"/v1/credit_notes/{note_id}/lines"},
        "memo": given.get("memo"),
        "metadata": given.get("metadata") or {},
        "number": f"{invoice['number']}-CN-{len(sim.store.select('credit_note', invoice=invoice['id'])) + 1:02d}",
        "out_of_band_amount": given.get("out_of_band_amount"),
        "pdf": f"{sim.base_url}/invoice/{invoice['id']}?pdf",
        "post_payment_amount": after,
        "pre_payment_amount": before,
        "pretax_credit_amounts": [],
        "reason": given.get("reason"),
        "refunds": refunds,
        "status": "issued",
        "subtotal": total,
        "subtotal_excluding_tax": total,
        "total": total,
        "total_excluding_tax": total,
        "total_taxes": [],
        "type": kinds[before > 0, after > 0],
    }
    return sim.create("credit_note", "cn", fields, customer=invoice["customer"])


def _lines(sim: Simulation, given: dict[str, Any]) -> list[Object]:
    if ("lines" in given) == ("amount" in given):
        raise ApiError("You must pass either `lines` or `amount`.", param="lines")
    wanted = given.get("lines") or [{"type": "custom_line_item", "unit_amount": given["amount"], "quantity": 1}]
    made = []
    for place, line in enumerate(wanted):
        if line["type"] != "custom_line_item" or "unit_amount" not in line:
            raise not_simulated("credit note lines other than custom ones with a unit_amount", f"lines[{place}][type]")
        quantity = line.get("quantity", 1)
        fields = {
            "id": sim.new_id("cnli"),
            "amount": line["unit_amount"] * quantity,
            "description": line.get("description"),
            "discount_amount": 0,
            "discount_amounts": [],
            "livemode": False,
            "pretax_credit_amounts": [],
            "quantity": quantity,
            "tax_rates": [],
            "taxes": [],
            "type": line["type"],
            "unit_amount": line["unit_amount"],
            "unit_amount_decimal": str(line["unit_amount"]),
        }
        made.append(complete("credit_note_line_item", fields))
    return made


def _check_destinations(given: dict[str, Any], after: int) -> None:
    returned = given.get("refund_amount", 0) + sum(each.get("amount_refunded", 0) for each in given.get("refunds", []))
    named = returned + given.get("credit_amount", 0) + given.get("out_of_band_amount", 0)
    if named != after:
        raise ApiError(
            f"The sum of refunds, credit amount and out of band amount ({named}) must equal the post payment credit"
            f" note amount ({after}).",
            param="refund_amount",
        )


def _refunds(sim: Simulation, given: dict[str, Any], invoice: Object) -> list[Object]:
    made = []
    for place, each in enumerate(given.get("refunds", [])):
        refund = sim.get("refund", each.get("refund"), f"refunds[{place}][refund]")
        if each.get("amount_refunded", 0) > refund["amount"]:
            raise ApiError("amount_refunded exceeds the refund.", param=f"refunds[{place}][amount_refunded]")
        made.append({"refund": refund["id"], "amount_refunded": each.get("amount_refunded", 0), "type": "refund"})
    if given.get("refund_amount"):
        payment = invoices.payment_of(sim, invoice)
        if payment is None or payment["status"] != "paid":
            raise ApiError("This invoice has no payment to refund.", param="refund_amount")
        intent = sim.get("payment_intent", payment["payment"]["payment_intent"])
        charged = sim.get("charge", intent["latest_charge"])
        refund = charges.make_refund(sim, charged, given["refund_amount"], None, {})
        made.append({"refund": refund["id"], "amount_refunded": refund["amount"], "type": "refund"})
    return [each | {"payment_record_refund": None} for each in made]


def _apply(sim: Simulation, invoice: Object, before: int, after: int) -> None:
    invoice["post_payment_credit_notes_amount"] += after
    invoice["pre_payment_credit_notes_amount"] += before
    invoice["amount_due"] -= before
    invoice["amount_remaining"] -= before
    sim.save(invoice)
    if before:
        payment = invoices.payment_of(sim, invoice)
        assert payment is not None
        intent = sim.get("payment_intent", payment["payment"]["payment_intent"])
        intent["amount"] = payment["amount_requested"] = invoice["amount_remaining"]
        sim.save(intent)
        sim.save(payment)
        if invoice["amount_remaining"] == 0:
            intents.end(sim, intent, "void_invoice")
            invoices.mark_paid(sim, invoice, 0)
