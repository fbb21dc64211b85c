"""Customers: created, changed, deleted and listed. Their cards are in ``cards``."""

from typing import Any

from core.email_addresses import email_problem
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import ListParameters, Parameters, Text, WithMetadata
from tenora.stripe_simulator.simulation import Object, Simulation


class CustomerSettings(Parameters, frozen=True):
    default_payment_method: Text


class CustomerChanges(Parameters, frozen=True):
    name: Text | None = None
    email: Text | None = None
    invoice_settings: CustomerSettings | None = None


class NewCustomer(WithMetadata, frozen=True, kw_only=True):
    name: Text | None = None
    email: Text | None = None
    test_clock: Text | None = None


class ListCustomers(ListParameters, frozen=True):
    test_clock: Text | None = None


def create(sim: Simulation, given: NewCustomer) -> Object:
    _check_email(given.email)
    fields: dict[str, Any] = {
        "balance": 0,
        "email": given.email,
        "invoice_settings": {"default_payment_method": None},
        "metadata": given.metadata,
        "name": given.name,
        "test_clock": given.test_clock,
    }
    if given.test_clock is not None:
        fields["created"] = sim.get("test_helpers.test_clock", given.test_clock, "test_clock")["frozen_time"]
    return sim.create("customer", fields, event="customer.created")


def _check_email(email: str | None) -> None:
    if email is not None and email_problem(email) is not None:
        raise ApiError(f"Invalid email address: {email}", code="email_invalid", param="email")


def update(sim: Simulation, given: CustomerChanges, customer: str) -> Object:
    found = sim.get("customer", customer)
    _check_email(given.email)
    changes: dict[str, Any] = {name: value for name in ("name", "email") if (value := getattr(given, name))}
    if given.invoice_settings is not None:
        param, method = "invoice_settings[default_payment_method]", given.invoice_settings.default_payment_method
        if sim.get("payment_method", method, param)["customer"] != customer:
            raise ApiError(
                f"The customer does not have a payment method with the ID {method}. The payment method must be attached"
                " to the customer.",
                code="resource_missing",
                param=param,
            )
        changes["invoice_settings"] = {"default_payment_method": method}
    return sim.save(found | changes, "customer.updated")


def delete(sim: Simulation, given: Parameters, customer: str) -> Object:
    """Leave a stone with the id, which no other call accepts, and take its cards away."""
    found = sim.get("customer", customer)
    for method in list(sim.store.select("payment_method", customer=customer)):
        sim.save(method | {"customer": None}, "payment_method.detached")
    stone = sim.save({"id": customer, "object": "customer", "deleted": True})
    sim.emit("customer.deleted", found)
    return stone
