"""The operations of Stripe's API that Tenora calls, with the parameters that each honours."""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tenora.stripe_simulator import cards, checkout, clocks, customers, intents, returns, webhooks
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import ListParameters, Parameters
from tenora.stripe_simulator.simulation import Object


class Operation(NamedTuple):
    """A method and a path. ``run`` gets the simulation, the parameters and the ids in the path."""

    method: str
    path: str
    parameters: type[Parameters]
    run: Callable[..., Object]


def find(operations: Iterable[Operation], method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
    """The operation of a request, and the ids in its path. Raises ApiError."""
    for operation in operations:
        pattern = operation.path.replace("{id}", "([A-Za-z0-9_]{1,255})")
        matched = re.fullmatch(pattern, path) if method == operation.method else None
        if matched is not None:
            return operation, matched.groups()
    raise ApiError(
        f"Unrecognized request URL ({method}: {path[:200]}). The Stripe simulator implements only the calls that Tenora"
        " makes.",
        status=404,
    )


def _one(kind: str, path: str) -> Operation:
    return Operation(
        "GET", f"/v1/{path}/{{id}}", Parameters, lambda sim, _, object_id: sim.get(kind, object_id, or_deleted=True)
    )


def _all(kind: str, path: str, parameters: type[ListParameters]) -> Operation:
    return Operation("GET", f"/v1/{path}", parameters, lambda sim, given: sim.page(kind, f"/v1/{path}", given))


OPERATIONS: Final = (
    Operation("POST", "/v1/customers", customers.NewCustomer, customers.create),
    _all("customer", "customers", customers.ListCustomers),
    _one("customer", "customers"),
    Operation("POST", "/v1/customers/{id}", customers.CustomerChanges, customers.update),
    Operation("DELETE", "/v1/customers/{id}", Parameters, customers.delete),
    Operation("GET", "/v1/customers/{id}/payment_methods", cards.ListCards, cards.list_cards),
    Operation("POST", "/v1/payment_methods/{id}/attach", cards.AttachCard, cards.attach),
    _one("setup_intent", "setup_intents"),
    Operation("POST", "/v1/payment_intents", intents.NewIntent, intents.create),
    _all("payment_intent", "payment_intents", intents.ListOfCustomer),
    _one("payment_intent", "payment_intents"),
    Operation("POST", "/v1/payment_intents/{id}/cancel", Parameters, intents.cancel),
    _all("charge", "charges", intents.ListOfCustomer),
    Operation("POST", "/v1/refunds", returns.NewRefund, returns.refund),
    _all("refund", "refunds", returns.ListReturns),
    _one("refund", "refunds"),
    _all("dispute", "disputes", returns.ListReturns),
    _one("dispute", "disputes"),
    Operation("POST", "/v1/checkout/sessions", checkout.NewSession, checkout.create),
    _all("checkout.session", "checkout/sessions", intents.ListOfCustomer),
    _one("checkout.session", "checkout/sessions"),
    Operation("POST", "/v1/checkout/sessions/{id}/expire", Parameters, checkout.expire),
    Operation("POST", "/v1/billing_portal/sessions", checkout.NewPortalSession, checkout.open_portal),
    Operation("GET", "/v1/events", webhooks.ListEvents, webhooks.list_events),
    Operation("POST", "/v1/test_helpers/test_clocks", clocks.NewClock, clocks.create),
    _one("test_helpers.test_clock", "test_helpers/test_clocks"),
    Operation("POST", "/v1/test_helpers/test_clocks/{id}/advance", clocks.ClockTarget, clocks.advance),
)
