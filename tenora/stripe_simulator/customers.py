"""Customers and their balance: positive is owed to the next invoice, negative is credit."""

from typing import Any, Final

from core.countries import country_problem
from core.email_addresses import email_problem
from tenora.stripe_simulator import payment_methods
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.simulation import Object, Simulation, merged

_EDITABLE: Final = ("name", "email", "description", "phone", "address", "tax_exempt", "metadata")


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    _require_contact(given)
    clock = given.get("test_clock")
    if clock is not None:
        clock_time = sim.get("test_helpers.test_clock", clock, "test_clock")["frozen_time"]
    fields = {name: given.get(name) or None for name in _EDITABLE}
    fields |= {
        "balance": 0,
        "currency": None,
        "delinquent": False,
        "invoice_prefix": sim.new_id("x")[2:10].upper(),
        "invoice_settings": {"default_payment_method": None},
        "metadata": given.get("metadata") or {},
        "next_invoice_sequence": 1,
        "preferred_locales": [],
        "tax_exempt": given.get("tax_exempt") or "none",
        "test_clock": clock,
    }
    if clock is not None:
        fields["created"] = clock_time
    customer = sim.create("customer", "cus", fields)
    if "payment_method" in given:
        payment_methods.attach(sim, {"customer": customer["id"]}, given["payment_method"])
    _set_default(sim, customer, given)
    sim.save(customer)
    sim.emit("customer.created", customer)
    return _set_balance(sim, customer, given)


def _require_contact(given: dict[str, Any]) -> None:
    """Stripe's refusals of e-mail addresses and countries that cannot be; an empty value removes the field."""
    email, country = given.get("email"), (given.get("address") or {}).get("country")
    if email and email_problem(email) is not None:
        raise ApiError(f"Invalid email address: {email}", code="email_invalid", param="email")
    if country and country_problem(country) is not None:
        raise ApiError(
            f"Country '{country}' is unknown. Try using a 2-character alphanumeric country code instead, such as 'US',"
            " 'EG', or 'GB'.",
            param="address[country]",
        )


def _set_balance(sim: Simulation, customer: Object, given: dict[str, Any]) -> Object:
    change = given.get("balance", customer["balance"]) - customer["balance"]
    if change:
        change_balance(sim, customer["id"], change, "adjustment", currency=customer["currency"] or "usd")
    return sim.get("customer", customer["id"])


def _set_default(sim: Simulation, customer: Object, given: dict[str, Any]) -> None:
    settings = given.get("invoice_settings") or {}
    method = settings.get("default_payment_method")
    if not method:
        return
    param = "invoice_settings[default_payment_method]"
    if sim.get("payment_method", method, param)["customer"] != customer["id"]:
        raise ApiError(
            f"The customer does not have a payment method with the ID {method}. The payment method must be attached to"
            " the customer.",
            code="resource_missing",
            param=param,
        )
    customer["invoice_settings"]["default_payment_method"] = method


def update(sim: Simulation, given: dict[str, Any], customer: str) -> Object:
    found = sim.get("customer", customer)
    if found.get("deleted"):
        raise ApiError(f"No such customer: '{customer}'", status=404, code="resource_missing", param="id")
    _require_contact(given)
    before: dict[str, Any] = {name: found[name] for name in _EDITABLE if name in given}
    for name in before:
        found[name] = merged(found[name], given[name]) if name == "metadata" else given[name] or None
    _set_default(sim, found, given)
    sim.save(found)
    sim.emit("customer.updated", found, before)
    return _set_balance(sim, found, given)


def delete(sim: Simulation, given: dict[str, Any], customer: str) -> Object:
    found = sim.get("customer", customer)
    if found.get("deleted"):
        raise ApiError(f"No such customer: '{customer}'", status=404, code="resource_missing", param="id")
    return erase(sim, found)


def erase(sim: Simulation, customer: Object) -> Object:
    """Leave a stone with the id, which no other call accepts, and take its cards away."""
    for method in sim.store.select("payment_method", customer=customer["id"]):
        payment_methods.detach(sim, {}, method["id"])
    stone = {"id": customer["id"], "object": "customer", "deleted": True}
    sim.save(stone)
    sim.emit("customer.deleted", customer)
    return stone


def list_all(sim: Simulation, given: dict[str, Any]) -> Object:
    found = [each for each in sim.store.select("customer") if not each.get("deleted")]
    return sim.page("customer", "/v1/customers", given, found=found)


def adjust(sim: Simulation, given: dict[str, Any], customer: str) -> Object:
    sim.get("customer", customer, "customer")
    return change_balance(
        sim, customer, given["amount"], "adjustment", currency=given["currency"],
        description=given.get("description"), metadata=given.get("metadata") or {},
    )  # fmt: skip


def change_balance(sim: Simulation, customer: str, amount: int, kind: str, **fields: Any) -> Object:
    """Add to what the customer owes, negative for credit, and record why."""
    owner = sim.get("customer", customer, "customer")
    before = owner["balance"]
    owner["balance"] = before + amount
    owner["currency"] = owner["currency"] or fields["currency"]
    sim.save(owner)
    entry = {"customer": customer, "amount": amount, "ending_balance": owner["balance"], "type": kind, "metadata": {}}
    made = sim.create("customer_balance_transaction", "cbtxn", entry | fields, customer=customer)
    sim.emit("customer.updated", owner, {"balance": before})
    return made
