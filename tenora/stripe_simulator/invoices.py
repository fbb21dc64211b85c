"""Invoices from draft to paid, void or uncollectible. Their lines are in ``invoice_items``.

Finalizing applies the customer's balance. What is then due may be nothing, or less than the minimum charge: such an
invoice is paid at once, and the rest stays on the customer's balance (https://docs.stripe.com/api/invoices/object).
"""

from typing import Any, Final

from tenora.stripe_simulator import customers, intents, invoice_items, payment_methods
from tenora.stripe_simulator.charges import Declined
from tenora.stripe_simulator.errors import ApiError, not_simulated, require
from tenora.stripe_simulator.simulation import Object, Simulation

_DAY_S: Final = 86_400


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    require(given, "customer")
    customer = sim.get("customer", given["customer"], "customer")
    method = given.get("collection_method", "charge_automatically")
    now = sim.now(customer["id"])
    due = given.get("due_date", now + given["days_until_due"] * _DAY_S if "days_until_due" in given else None)
    if (method == "send_invoice") != (due is not None):
        raise ApiError(
            "`days_until_due` or `due_date` must be given if and only if `collection_method` is `send_invoice`.",
            param="days_until_due",
        )
    currency = given.get("currency") or customer["currency"] or "usd"
    intents.check_currency(currency)
    fields = _amounts() | {
        "account_country": "US",
        "account_name": "Stripe simulator: no real money",
        "auto_advance": given.get("auto_advance", False),
        "automatic_tax": {"enabled": False},
        "billing_reason": "manual",
        "collection_method": method,
        "currency": currency,
        "customer": customer["id"],
        "customer_email": customer["email"],
        "customer_name": customer["name"],
        "customer_tax_exempt": customer["tax_exempt"],
        "customer_tax_ids": [],
        "default_payment_method": given.get("default_payment_method"),
        "default_tax_rates": [],
        "description": given.get("description"),
        "discounts": [],
        "due_date": due,
        "footer": given.get("footer"),
        "issuer": {"type": "self"},
        "lines": {"object": "list", "data": [], "has_more": False, "url": ""},
        "metadata": given.get("metadata") or {},
        "payment_settings": {},
        "period_end": now,
        "period_start": now,
        "status": "draft",
        "status_transitions": {},
        "test_clock": customer["test_clock"],
    }
    invoice = sim.create("invoice", "in", fields, customer=customer["id"])
    invoice["lines"]["url"] = f"/v1/invoices/{invoice['id']}/lines"
    if given.get("pending_invoice_items_behavior") == "include":
        invoice_items.take_pending(sim, invoice)
    invoice_items.refresh(sim, invoice)
    sim.emit("invoice.created", invoice)
    return invoice


def _amounts() -> dict[str, Any]:
    zero = (
        "amount_due", "amount_overpaid", "amount_paid", "amount_remaining", "amount_shipping", "attempt_count",
        "post_payment_credit_notes_amount", "pre_payment_credit_notes_amount", "starting_balance", "subtotal", "total",
    )  # fmt: skip
    lists: dict[str, Any] = {"total_discount_amounts": [], "total_taxes": []}
    return dict.fromkeys(zero, 0) | lists | {"attempted": False}


def finalize(sim: Simulation, given: dict[str, Any], invoice_id: str) -> Object:
    invoice = sim.get("invoice", invoice_id)
    if invoice["status"] != "draft":
        raise ApiError(
            "This invoice is already finalized, you can't re-finalize a non-draft invoice.", code="invoice_not_editable"
        )
    if "auto_advance" in given:
        invoice["auto_advance"] = given["auto_advance"]
    customer = sim.get("customer", invoice["customer"], "customer")
    now = sim.now(customer["id"])
    invoice["number"] = f"{customer['invoice_prefix']}-{customer['next_invoice_sequence']:04d}"
    customer["next_invoice_sequence"] += 1
    sim.save(customer)
    invoice["status_transitions"]["finalized_at"] = now
    invoice |= {
        "effective_at": now,
        "hosted_invoice_url": f"{sim.base_url}/invoice/{invoice_id}",
        "invoice_pdf": f"{sim.base_url}/invoice/{invoice_id}?pdf",
        "starting_balance": customer["balance"],
        "status": "open",
    }
    due = invoice["total"] + customer["balance"]
    payable = due if due >= intents.MINIMUM_CENTS else 0
    invoice |= {"amount_due": payable, "amount_remaining": payable, "ending_balance": due - payable}
    _move_balance(sim, invoice, too_small=0 < due < intents.MINIMUM_CENTS)
    sim.save(invoice)
    sim.emit("invoice.finalized", invoice)
    if payable == 0:
        return mark_paid(sim, invoice, 0)
    _start_payment(sim, invoice)
    return invoice


def _move_balance(sim: Simulation, invoice: Object, *, too_small: bool) -> None:
    change = invoice["ending_balance"] - invoice["starting_balance"]
    if change:
        kind = "invoice_too_small" if too_small else "applied_to_invoice"
        customers.change_balance(
            sim, invoice["customer"], change, kind, currency=invoice["currency"], invoice=invoice["id"]
        )


def _start_payment(sim: Simulation, invoice: Object) -> None:
    customer, amount, currency = invoice["customer"], invoice["amount_due"], invoice["currency"]
    intent = intents.start(sim, {"description": f"Invoice {invoice['number']}"}, customer, amount, currency)
    fields = {
        "amount_requested": amount,
        "currency": currency,
        "invoice": invoice["id"],
        "is_default": True,
        "payment": {"type": "payment_intent", "payment_intent": intent["id"]},
        "status": "open",
        "status_transitions": {},
    }
    sim.create("invoice_payment", "inpay", fields, customer=customer)


def payment_of(sim: Simulation, invoice: Object) -> Object | None:
    """The invoice's own payment, if it was ever payable."""
    return next(iter(sim.store.select("invoice_payment", invoice=invoice["id"])), None)


def pay(sim: Simulation, given: dict[str, Any], invoice_id: str) -> Object:
    invoice = sim.get("invoice", invoice_id)
    if invoice["status"] == "paid":
        raise ApiError("Invoice is already paid")
    if invoice["status"] == "draft":
        raise not_simulated("paying a draft; finalize it first", "id")
    if invoice["status"] == "void":
        raise ApiError("You cannot pay an invoice that has been voided.")
    payment = payment_of(sim, invoice)
    assert payment is not None
    intent = sim.get("payment_intent", payment["payment"]["payment_intent"])
    if given.get("paid_out_of_band"):
        intents.end(sim, intent, "abandoned")
        payment |= {"status": "canceled"}
        payment["status_transitions"]["canceled_at"] = sim.now(invoice["customer"])
        sim.save(payment)
        invoice["amount_paid_off_stripe"] = invoice["amount_remaining"]
        return mark_paid(sim, invoice, invoice["amount_remaining"])
    method = _method(sim, given, invoice)
    try:
        intents.attempt(sim, intent, method, off_session=False)
    except Declined as declined:
        return _failed(sim, invoice, intent, declined)
    return settle(sim, invoice, payment)


def _method(sim: Simulation, given: dict[str, Any], invoice: Object) -> Object:
    customer = sim.get("customer", invoice["customer"], "customer")
    default = customer["invoice_settings"]["default_payment_method"]
    chosen = given.get("payment_method") or invoice["default_payment_method"] or default
    if chosen is None:
        raise ApiError(
            "This customer has no attached payment source or default payment method. Please consider adding a default"
            " payment method.",
            code="resource_missing",
        )
    method = payment_methods.resolve(sim, chosen)
    if method["customer"] != customer["id"]:
        raise ApiError(
            f"The PaymentMethod {method['id']} does not belong to the customer of the invoice; attach it first.",
            param="payment_method",
        )
    return method


def _failed(sim: Simulation, invoice: Object, intent: Object, declined: Declined) -> Object:
    invoice |= {"attempted": True, "attempt_count": invoice["attempt_count"] + 1}
    sim.save(invoice)
    if declined.needs_action:
        sim.emit("invoice.payment_action_required", invoice)
    sim.emit("invoice.payment_failed", invoice)
    refusal = intents.refusal(sim, declined, intent["id"])
    if declined.needs_action:
        refusal.error |= {
            "code": "invoice_payment_intent_requires_action",
            "message": "This payment requires additional user action before it can be completed successfully. Payment"
            " can be completed using the invoice's hosted page.",
        }
        refusal.error.pop("decline_code")
    raise refusal from declined


def settle(sim: Simulation, invoice: Object, payment: Object) -> Object:
    """The invoice's payment intent succeeded."""
    payment |= {"status": "paid", "amount_paid": invoice["amount_remaining"]}
    payment["status_transitions"]["paid_at"] = sim.now(invoice["customer"])
    sim.save(payment)
    sim.emit("invoice_payment.paid", payment)
    invoice |= {"attempted": True, "attempt_count": invoice["attempt_count"] + 1}
    return mark_paid(sim, invoice, invoice["amount_remaining"])


def authenticate(sim: Simulation, intent_id: str, *, confirmed: bool) -> Object:
    """The owner answers 3D Secure for an invoice's payment, or for one without an invoice. Raises ApiError (402)."""
    intent = sim.get("payment_intent", intent_id)
    payment = next(iter(sim.store.select("invoice_payment", payment__payment_intent=intent_id)), None)
    try:
        intents.authenticate(sim, intent, confirmed=confirmed)
    except Declined as declined:
        if payment is not None:
            return _failed(sim, sim.get("invoice", payment["invoice"]), intent, declined)
        raise intents.refusal(sim, declined, intent_id) from declined
    return intent if payment is None else settle(sim, sim.get("invoice", payment["invoice"]), payment)


def mark_paid(sim: Simulation, invoice: Object, amount: int) -> Object:
    """Close an invoice that needs no further payment."""
    invoice["amount_paid"] += amount
    invoice |= {"amount_remaining": 0, "status": "paid", "auto_advance": False, "attempted": True}
    invoice["status_transitions"]["paid_at"] = sim.now(invoice["customer"])
    sim.save(invoice)
    sim.emit("invoice.updated", invoice)
    sim.emit("invoice.paid", invoice)
    sim.emit("invoice.payment_succeeded", invoice)
    return invoice


def void(sim: Simulation, given: dict[str, Any], invoice_id: str) -> Object:
    invoice = _close(sim, invoice_id, "void", "voided_at", ("open", "uncollectible"))
    change = invoice["starting_balance"] - (invoice["ending_balance"] or 0)
    if change:
        customers.change_balance(
            sim, invoice["customer"], change, "unapplied_from_invoice",
            currency=invoice["currency"], invoice=invoice_id,
        )  # fmt: skip
    payment = payment_of(sim, invoice)
    if payment is not None and payment["status"] == "open":
        intents.end(sim, sim.get("payment_intent", payment["payment"]["payment_intent"]), "void_invoice")
    sim.emit("invoice.voided", invoice)
    return invoice


def mark_uncollectible(sim: Simulation, given: dict[str, Any], invoice_id: str) -> Object:
    invoice = _close(sim, invoice_id, "uncollectible", "marked_uncollectible_at", ("open",))
    sim.emit("invoice.marked_uncollectible", invoice)
    return invoice


def _close(sim: Simulation, invoice_id: str, status: str, at: str, allowed: tuple[str, ...]) -> Object:
    invoice = sim.get("invoice", invoice_id)
    if invoice["status"] not in allowed:
        raise ApiError("You can only pass in open invoices. This invoice isn't open.")
    invoice |= {"status": status, "auto_advance": False}
    invoice["status_transitions"][at] = sim.now(invoice["customer"])
    return sim.save(invoice)


def list_payments(sim: Simulation, given: dict[str, Any]) -> Object:
    filters = dict(given)
    found = sim.store.select("invoice_payment")
    if "payment" in filters:
        wanted = filters.pop("payment").get("payment_intent")
        found = [each for each in found if each["payment"].get("payment_intent") == wanted]
    return sim.page("invoice_payment", "/v1/invoice_payments", filters, found=found)
