"""The table of the operations that the simulator implements, with the parameters that each honours.

A parameter of Stripe's that an operation does not honour is refused: ignoring it would let a wrong call pass.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tenora.stripe_simulator import (
    charges,
    checkout,
    credit_notes,
    customers,
    intents,
    invoice_items,
    invoices,
    payment_methods,
    test_clocks,
    webhooks,
)
from tenora.stripe_simulator.annotations import parameter_type
from tenora.stripe_simulator.errors import not_simulated
from tenora.stripe_simulator.form import Tree
from tenora.stripe_simulator.parameters import read_parameters
from tenora.stripe_simulator.simulation import Object

_PAGE: Final = "limit starting_after ending_before"
_PAGE_BY_TIME: Final = f"{_PAGE} created"


@dataclass(frozen=True)
class Operation:
    """A method and path of Stripe's API. ``parameters`` names the SDK's type of what may be sent."""

    method: str
    path: str
    parameters: str
    honours: frozenset[str]
    run: Callable[..., Object]

    def match(self, method: str, path: str) -> tuple[str, ...] | None:
        """The ids in the path, or None if the operation is another one."""
        pattern = re.sub(r"\{\w+\}", "([A-Za-z0-9_]{1,255})", self.path)
        found = re.fullmatch(pattern, path) if method == self.method else None
        return found.groups() if found else None

    def read(self, tree: Tree) -> dict[str, Any]:
        """The typed parameters. Raises ApiError."""
        values = read_parameters(tree, parameter_type(self.parameters))
        for name in values:
            if name not in self.honours:
                raise not_simulated(f"the parameter {name} of {self.method} {self.path}", name)
        return values


def _operation(method: str, path: str, parameters: str, honours: str, run: Callable[..., Object]) -> Operation:
    return Operation(method, f"/v1/{path}", parameters, frozenset(honours.split()), run)


def operations() -> tuple[Operation, ...]:
    """All of them. A path with a fixed word stands before one with an id in its place."""
    return tuple(_operation(*row) for row in (*_CUSTOMERS, *_PAYMENTS, *_INVOICES, *_OTHERS))


def _one(kind: str) -> Callable[..., Object]:
    return lambda sim, _given, object_id: sim.get(kind, object_id)


def _all(kind: str, path: str) -> Callable[..., Object]:
    return lambda sim, given: sim.page(kind, f"/v1/{path}", given)


_CUSTOMER_FIELDS: Final = "name email description phone address tax_exempt metadata balance invoice_settings"
_CUSTOMERS: Final = (
    ("POST", "customers", "CustomerCreateParams", f"{_CUSTOMER_FIELDS} payment_method test_clock", customers.create),
    ("GET", "customers", "CustomerListParams", f"{_PAGE_BY_TIME} email test_clock", customers.list_all),
    ("GET", "customers/{id}", "CustomerRetrieveParams", "", _one("customer")),
    ("POST", "customers/{id}", "CustomerUpdateParams", _CUSTOMER_FIELDS, customers.update),
    ("DELETE", "customers/{id}", "CustomerDeleteParams", "", customers.delete),
    ("GET", "customers/{id}/payment_methods", "CustomerPaymentMethodListParams", f"{_PAGE} type",
     payment_methods.list_of_customer),
    ("POST", "customers/{id}/balance_transactions", "CustomerBalanceTransactionCreateParams",
     "amount currency description metadata", customers.adjust),
    ("POST", "payment_methods/{id}/attach", "PaymentMethodAttachParams", "customer", payment_methods.attach),
)  # fmt: skip
_PAYMENTS: Final = (
    ("GET", "setup_intents/{id}", "SetupIntentRetrieveParams", "", _one("setup_intent")),
    ("POST", "payment_intents", "PaymentIntentCreateParams",
     ("amount currency customer payment_method description metadata confirm off_session setup_future_usage"
      " allowed_payment_method_types return_url"), intents.create),
    ("GET", "payment_intents", "PaymentIntentListParams",
     f"{_PAGE_BY_TIME} customer", _all("payment_intent", "payment_intents")),
    ("GET", "payment_intents/{id}", "PaymentIntentRetrieveParams", "", _one("payment_intent")),
    ("POST", "payment_intents/{id}/cancel", "PaymentIntentCancelParams", "cancellation_reason", intents.cancel),
    ("GET", "charges", "ChargeListParams", f"{_PAGE_BY_TIME} customer payment_intent", _all("charge", "charges")),
    ("POST", "refunds", "RefundCreateParams", "amount charge payment_intent reason metadata", charges.refund),
    ("GET", "refunds", "RefundListParams", f"{_PAGE_BY_TIME} charge payment_intent", _all("refund", "refunds")),
    ("GET", "refunds/{id}", "RefundRetrieveParams", "", _one("refund")),
    ("GET", "disputes", "DisputeListParams", f"{_PAGE_BY_TIME} charge payment_intent", _all("dispute", "disputes")),
    ("GET", "disputes/{id}", "DisputeRetrieveParams", "", _one("dispute")),
    ("POST", "checkout/sessions", "checkout.SessionCreateParams",
     ("mode customer currency line_items success_url cancel_url metadata payment_intent_data setup_intent_data"
      " allowed_payment_method_types client_reference_id expires_at"), checkout.create),
    ("GET", "checkout/sessions", "checkout.SessionListParams",
     f"{_PAGE_BY_TIME} customer payment_intent status", _all("checkout.session", "checkout/sessions")),
    ("GET", "checkout/sessions/{id}", "checkout.SessionRetrieveParams", "", _one("checkout.session")),
    ("POST", "checkout/sessions/{id}/expire", "checkout.SessionExpireParams", "", checkout.expire),
    ("POST", "billing_portal/sessions", "billing_portal.SessionCreateParams", "customer return_url",
     checkout.open_portal),
)  # fmt: skip
_INVOICES: Final = (
    ("POST", "invoiceitems", "InvoiceItemCreateParams",
     "customer invoice amount currency description metadata period discountable", invoice_items.create),
    ("GET", "invoiceitems", "InvoiceItemListParams", f"{_PAGE_BY_TIME} customer invoice pending",
     invoice_items.list_all),
    ("POST", "invoices", "InvoiceCreateParams",
     ("customer currency auto_advance collection_method days_until_due due_date description footer metadata"
      " default_payment_method pending_invoice_items_behavior"), invoices.create),
    ("GET", "invoices", "InvoiceListParams",
     f"{_PAGE_BY_TIME} customer status collection_method", _all("invoice", "invoices")),
    ("GET", "invoices/{id}", "InvoiceRetrieveParams", "", _one("invoice")),
    ("POST", "invoices/{id}/finalize", "InvoiceFinalizeInvoiceParams", "auto_advance", invoices.finalize),
    ("POST", "invoices/{id}/pay", "InvoicePayParams", "payment_method off_session paid_out_of_band", invoices.pay),
    ("POST", "invoices/{id}/void", "InvoiceVoidInvoiceParams", "", invoices.void),
    ("POST", "invoices/{id}/mark_uncollectible", "InvoiceMarkUncollectibleParams", "", invoices.mark_uncollectible),
    ("GET", "invoice_payments", "InvoicePaymentListParams", f"{_PAGE_BY_TIME} invoice payment status",
     invoices.list_payments),
    ("POST", "credit_notes", "CreditNoteCreateParams",
     "invoice amount lines memo reason metadata refund_amount refunds credit_amount out_of_band_amount",
     credit_notes.create),
    ("GET", "credit_notes", "CreditNoteListParams",
     f"{_PAGE_BY_TIME} customer invoice", _all("credit_note", "credit_notes")),
)  # fmt: skip
_OTHERS: Final = (
    ("GET", "events", "EventListParams", f"{_PAGE_BY_TIME} type types", webhooks.list_events),
    ("POST", "test_helpers/test_clocks", "test_helpers.TestClockCreateParams", "frozen_time name", test_clocks.create),
    ("GET", "test_helpers/test_clocks/{id}", "test_helpers.TestClockRetrieveParams",
     "", _one("test_helpers.test_clock")),
    ("POST", "test_helpers/test_clocks/{id}/advance", "test_helpers.TestClockAdvanceParams", "frozen_time",
     test_clocks.advance),
)  # fmt: skip
