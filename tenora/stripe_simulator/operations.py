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
    return Operation(method, f"/v1/{path}", parameters, frozenset({*honours.split(), "expand"}), run)


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
    ("GET", "customers/{id}/balance_transactions", "CustomerBalanceTransactionListParams",
     f"{_PAGE_BY_TIME} invoice", customers.balance_list),
    ("POST", "payment_methods", "PaymentMethodCreateParams", "type card", payment_methods.create),
    ("GET", "payment_methods", "PaymentMethodListParams",
     f"{_PAGE} customer type", _all("payment_method", "payment_methods")),
    ("GET", "payment_methods/{id}", "PaymentMethodRetrieveParams", "", _one("payment_method")),
    ("POST", "payment_methods/{id}/attach", "PaymentMethodAttachParams", "customer", payment_methods.attach),
    ("POST", "payment_methods/{id}/detach", "PaymentMethodDetachParams", "", payment_methods.detach),
)  # fmt: skip
_PAYMENTS: Final = (
    ("POST", "setup_intents", "SetupIntentCreateParams",
     "customer payment_method description metadata usage confirm allowed_payment_method_types", intents.create_setup),
    ("GET", "setup_intents", "SetupIntentListParams",
     f"{_PAGE_BY_TIME} customer payment_method", _all("setup_intent", "setup_intents")),
    ("GET", "setup_intents/{id}", "SetupIntentRetrieveParams", "", _one("setup_intent")),
    ("POST", "setup_intents/{id}/confirm", "SetupIntentConfirmParams", "payment_method", intents.confirm_setup),
    ("POST", "setup_intents/{id}/cancel", "SetupIntentCancelParams", "cancellation_reason", intents.cancel_setup),
    ("POST", "payment_intents", "PaymentIntentCreateParams",
     ("amount currency customer payment_method description metadata confirm off_session setup_future_usage"
      " allowed_payment_method_types return_url"), intents.create),
    ("GET", "payment_intents", "PaymentIntentListParams",
     f"{_PAGE_BY_TIME} customer", _all("payment_intent", "payment_intents")),
    ("GET", "payment_intents/{id}", "PaymentIntentRetrieveParams", "", _one("payment_intent")),
    ("POST", "payment_intents/{id}/confirm", "PaymentIntentConfirmParams", "payment_method off_session return_url",
     intents.confirm),
    ("POST", "payment_intents/{id}/cancel", "PaymentIntentCancelParams", "cancellation_reason", intents.cancel),
    ("GET", "charges", "ChargeListParams", f"{_PAGE_BY_TIME} customer payment_intent", _all("charge", "charges")),
    ("GET", "charges/{id}", "ChargeRetrieveParams", "", _one("charge")),
    ("POST", "refunds", "RefundCreateParams", "amount charge payment_intent reason metadata", charges.refund),
    ("GET", "refunds", "RefundListParams", f"{_PAGE_BY_TIME} charge payment_intent", _all("refund", "refunds")),
    ("GET", "refunds/{id}", "RefundRetrieveParams", "", _one("refund")),
    ("GET", "disputes", "DisputeListParams", f"{_PAGE_BY_TIME} charge payment_intent", _all("dispute", "disputes")),
    ("GET", "disputes/{id}", "DisputeRetrieveParams", "", _one("dispute")),
    ("POST", "disputes/{id}/close", "DisputeCloseParams", "", charges.accept_dispute),
    ("POST", "checkout/sessions", "checkout.SessionCreateParams",
     ("mode customer currency line_items success_url cancel_url metadata payment_intent_data setup_intent_data"
      " allowed_payment_method_types client_reference_id expires_at"), checkout.create),
    ("GET", "checkout/sessions", "checkout.SessionListParams",
     f"{_PAGE_BY_TIME} customer payment_intent status", _all("checkout.session", "checkout/sessions")),
    ("GET", "checkout/sessions/{id}", "checkout.SessionRetrieveParams", "", _one("checkout.session")),
    ("GET", "checkout/sessions/{id}/line_items", "checkout.SessionLineItemListParams", _PAGE, checkout.items_of),
    ("POST", "checkout/sessions/{id}/expire", "checkout.SessionExpireParams", "", checkout.expire),
    ("POST", "billing_portal/sessions", "billing_portal.SessionCreateParams", "customer return_url",
     checkout.open_portal),
)  # fmt: skip
_INVOICES: Final = (
    ("POST", "invoiceitems", "InvoiceItemCreateParams",
     "customer invoice amount currency description metadata period discountable", invoice_items.create),
    ("GET", "invoiceitems", "InvoiceItemListParams", f"{_PAGE_BY_TIME} customer invoice pending",
     invoice_items.list_all),
    ("GET", "invoiceitems/{id}", "InvoiceItemRetrieveParams", "", _one("invoiceitem")),
    ("POST", "invoiceitems/{id}", "InvoiceItemUpdateParams", "amount description metadata", invoice_items.update),
    ("DELETE", "invoiceitems/{id}", "InvoiceItemDeleteParams", "", invoice_items.delete),
    ("POST", "invoices", "InvoiceCreateParams",
     ("customer currency auto_advance collection_method days_until_due due_date description footer metadata"
      " default_payment_method pending_invoice_items_behavior"), invoices.create),
    ("GET", "invoices", "InvoiceListParams",
     f"{_PAGE_BY_TIME} customer status collection_method", _all("invoice", "invoices")),
    ("GET", "invoices/{id}", "InvoiceRetrieveParams", "", _one("invoice")),
    ("POST", "invoices/{id}", "InvoiceUpdateParams",
     "auto_advance description footer metadata default_payment_method", invoices.update),
    ("DELETE", "invoices/{id}", "InvoiceDeleteParams", "", invoices.delete),
    ("GET", "invoices/{id}/lines", "InvoiceLineItemListParams", _PAGE, invoice_items.list_lines),
    ("POST", "invoices/{id}/finalize", "InvoiceFinalizeInvoiceParams", "auto_advance", invoices.finalize),
    ("POST", "invoices/{id}/pay", "InvoicePayParams", "payment_method off_session paid_out_of_band", invoices.pay),
    ("POST", "invoices/{id}/void", "InvoiceVoidInvoiceParams", "", invoices.void),
    ("POST", "invoices/{id}/mark_uncollectible", "InvoiceMarkUncollectibleParams", "", invoices.mark_uncollectible),
    ("GET", "invoice_payments", "InvoicePaymentListParams", f"{_PAGE_BY_TIME} invoice payment status",
     invoices.list_payments),
    ("GET", "invoice_payments/{id}", "InvoicePaymentRetrieveParams", "", _one("invoice_payment")),
    ("POST", "credit_notes", "CreditNoteCreateParams",
     "invoice amount lines memo reason metadata refund_amount refunds credit_amount out_of_band_amount",
     credit_notes.create),
    ("GET", "credit_notes", "CreditNoteListParams",
     f"{_PAGE_BY_TIME} customer invoice", _all("credit_note", "credit_notes")),
    ("GET", "credit_notes/{id}", "CreditNoteRetrieveParams", "", _one("credit_note")),
    ("POST", "credit_notes/{id}/void", "CreditNoteVoidCreditNoteParams", "", credit_notes.void),
)  # fmt: skip
_OTHERS: Final = (
    ("GET", "events", "EventListParams", f"{_PAGE_BY_TIME} type types", webhooks.list_events),
    ("GET", "events/{id}", "EventRetrieveParams", "", webhooks.retrieve_event),
    ("POST", "webhook_endpoints", "WebhookEndpointCreateParams",
     "url enabled_events api_version description metadata", webhooks.create),
    ("GET", "webhook_endpoints", "WebhookEndpointListParams", _PAGE, _all("webhook_endpoint", "webhook_endpoints")),
    ("GET", "webhook_endpoints/{id}", "WebhookEndpointRetrieveParams", "", _one("webhook_endpoint")),
    ("POST", "webhook_endpoints/{id}", "WebhookEndpointUpdateParams",
     "url enabled_events description disabled metadata", webhooks.update),
    ("DELETE", "webhook_endpoints/{id}", "WebhookEndpointDeleteParams", "", webhooks.delete),
    ("POST", "test_helpers/test_clocks", "test_helpers.TestClockCreateParams", "frozen_time name", test_clocks.create),
    ("GET", "test_helpers/test_clocks", "test_helpers.TestClockListParams",
     _PAGE, _all("test_helpers.test_clock", "test_helpers/test_clocks")),
    ("GET", "test_helpers/test_clocks/{id}", "test_helpers.TestClockRetrieveParams",
     "", _one("test_helpers.test_clock")),
    ("POST", "test_helpers/test_clocks/{id}/advance", "test_helpers.TestClockAdvanceParams", "frozen_time",
     test_clocks.advance),
    ("DELETE", "test_helpers/test_clocks/{id}", "test_helpers.TestClockDeleteParams", "", test_clocks.delete),
)  # fmt: skip
