"""The shapes of Stripe's objects, from the SDK's resource classes: completes new objects, finds what is wrong in one.

An object that the simulator creates names every required field; optional ones that it leaves out are null.
"""

from decimal import Decimal
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from tenora.stripe_simulator.annotations import fields_of, members, resource_type

KINDS: Final = {
    "billing_portal.session": "billing_portal.Session",
    "charge": "Charge",
    "checkout.session": "checkout.Session",
    "credit_note": "CreditNote",
    "credit_note_line_item": "CreditNoteLineItem",
    "customer": "Customer",
    "customer_balance_transaction": "CustomerBalanceTransaction",
    "dispute": "Dispute",
    "event": "Event",
    "invoice": "Invoice",
    "invoice_payment": "InvoicePayment",
    "invoiceitem": "InvoiceItem",
    "item": "LineItem",
    "line_item": "InvoiceLineItem",
    "payment_intent": "PaymentIntent",
    "payment_method": "PaymentMethod",
    "refund": "Refund",
    "setup_intent": "SetupIntent",
    "test_helpers.test_clock": "test_helpers.TestClock",
}
_OMITTED: Final = {
    "charge": {"refunds", "level3", "authorization_code"},
    "checkout.session": {"line_items"},
    "customer": {"sources", "subscriptions", "tax_ids", "tax", "cash_balance", "business_name", "individual_name"},
    "invoice": {"payments", "confirmation_secret", "amount_paid_off_stripe", "total_pretax_credit_amounts"},
}
"""Optional fields that Stripe leaves out instead of writing null, besides ``deleted``."""


def complete(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A new object of this kind, with null for each optional field that is not given."""
    given = {"object": kind, **fields}
    declared = fields_of(resource_type(KINDS[kind]))
    omitted = {"deleted", *_OMITTED.get(kind, set())}
    if kind == "payment_method":
        omitted |= {name for name, hint in declared.items() if name not in ("customer", "metadata", "allow_redisplay")}
    return _filled(given, resource_type(KINDS[kind]), omitted)


def _filled(given: dict[str, Any], declared: type, omitted: set[str]) -> dict[str, Any]:
    fields = fields_of(declared)
    unknown = given.keys() - fields.keys()
    assert not unknown, f"{declared.__name__} has no {unknown}"
    filled = dict(given)
    for name, hint in fields.items():
        options = members(hint)
        if name not in filled and NoneType in options and name not in omitted:
            filled[name] = None
        nested = next((each for each in options if isinstance(each, type) and _is_object(each)), None)
        value = filled.get(name)
        if nested is not None and isinstance(value, dict) and "object" not in value:
            filled[name] = _filled(value, nested, set())
    return filled


def problems(value: dict[str, Any]) -> list[str]:
    """What in an object contradicts its resource class: missing, unknown and mistyped fields. Tests call this."""
    if value.get("object") == "list":
        return [each for item in value["data"] for each in problems(item)]
    return list(_problems(value, resource_type(KINDS[value["object"]]), value["object"]))


def _problems(value: dict[str, Any], declared: type, path: str) -> list[str]:
    fields = fields_of(declared)
    found = [f"{path}.{name}: unknown field" for name in value.keys() - fields.keys()]
    for name, hint in fields.items():
        options = members(hint)
        if name not in value:
            if NoneType not in options:
                found.append(f"{path}.{name}: missing")
        elif not any(_matches(value[name], option) for option in options):
            nested = [each for each in options if isinstance(each, type) and _is_object(each)]
            deeper = _problems(value[name], nested[0], f"{path}.{name}") if nested and _plain(value[name]) else []
            found += deeper or [f"{path}.{name}: {repr(value[name])[:80]} is no {str(options)[:200]}"]
    return found


def _plain(value: Any) -> bool:
    return isinstance(value, dict)


def _matches(value: Any, option: Any) -> bool:
    origin = get_origin(option)
    if origin is Literal:
        return value in get_args(option)
    if option in (str, int, bool, float, NoneType):
        return type(value) is option
    if option is Decimal:
        return isinstance(value, str)
    if origin is list:
        item = get_args(option)[0]
        return isinstance(value, list) and all(any(_matches(each, one) for one in members(item)) for each in value)
    return isinstance(value, dict) and _matches_object(value, option)


def _matches_object(value: dict[str, Any], option: Any) -> bool:
    if get_origin(option) is None:
        return _is_object(option) and not _problems(value, option, "")
    items = get_args(option)[-1]  # of a ListObject of one class, or of a map such as metadata
    if value.get("object") == "list":
        return value.keys() >= {"data", "has_more", "url"} and all(_matches(one, items) for one in value["data"])
    return all(isinstance(key, str) for key in value)


def _is_object(option: type) -> bool:
    return hasattr(option, "_inner_class_types")
