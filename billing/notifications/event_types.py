"""The catalogue of what tenants are informed of. Each type has the fields of its data and the text of its e-mail.

A text names fields in braces. ``emails`` fills them in: ``…_nanos`` and ``…_cents`` are shown as dollars.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of notification. ``fields`` must be in its data. Tenants can choose it if it is ``subscribable``."""

    name: str
    fields: tuple[str, ...]
    subject: str
    text: str
    subscribable: bool = True


ENDPOINT_CONFIRMATION: Final = "endpoint.confirmation"
ENDPOINT_TEST: Final = "endpoint.test"
ENDPOINT_DISABLED: Final = "endpoint.disabled"
SPEND_THRESHOLD: Final = "spend.threshold_reached"
BALANCE_LOW: Final = "balance.low"
CREDIT_LIMIT_THRESHOLD: Final = "credit_limit.threshold_reached"
COMMITMENT_THRESHOLD: Final = "commitment.threshold_reached"
BATCH_ENDED: Final = "batch.ended"

_ALL: Final = (
    EventType(
        name=SPEND_THRESHOLD,
        fields=("scope", "percent", "spent_nanos", "limit_nanos", "period_start", "period_end"),
        subject="{percent} % of the spending limit of {scope} is used",
        text="{scope} has spent {spent_nanos} of its limit of {limit_nanos} in the period from {period_start} to "
        "{period_end}.\n\nAt 100 %, requests are refused until the period ends or you raise the limit.",
    ),
    EventType(
        name=BALANCE_LOW,
        fields=("balance_nanos", "floor_nanos"),
        subject="Your balance is {balance_nanos}",
        text="Your balance has fallen to {balance_nanos}; you asked to hear at {floor_nanos}.\n\nWithout a balance, "
        "requests are refused. Add credit to continue.",
    ),
    EventType(
        name=CREDIT_LIMIT_THRESHOLD,
        fields=("percent", "used_nanos", "limit_nanos"),
        subject="{percent} % of your credit limit is used",
        text="Usage that is not invoiced yet and unpaid invoices come to {used_nanos} of your credit limit of "
        "{limit_nanos}.\n\nAt 100 %, requests are refused until you pay an invoice or the limit is raised.",
    ),
    EventType(
        name=COMMITMENT_THRESHOLD,
        fields=("percent", "used_nanos", "commitment_nanos", "period_start", "period_end"),
        subject="{percent} % of your commitment is used",
        text="You have used {used_nanos} of your commitment of {commitment_nanos} in the period from {period_start} to "
        "{period_end}.",
    ),
    EventType(
        name="top_up.succeeded",
        fields=("amount_cents",),
        subject="{amount_cents} of credit was added",
        text="Your payment of {amount_cents} has arrived, and the credit is ready to use.",
    ),
    EventType(
        name="top_up.failed",
        fields=("amount_cents", "reason"),
        subject="Your top-up of {amount_cents} failed",
        text="The payment of {amount_cents} was not accepted: {reason}\n\n"
        "No credit was added. Check your payment method.",
    ),
    EventType(
        name="top_up.cap_reached",
        fields=("amount_cents", "cap_cents", "month"),
        subject="Automatic purchases of credit have stopped for {month}",
        text="Your balance is low, but one more top-up of {amount_cents} would exceed your cap of {cap_cents} for "
        "{month} (UTC).\n\nRaise the cap or buy credit to continue; without a balance, requests are refused.",
    ),
    EventType(
        name="invoice.finalized",
        fields=("invoice_id", "number", "total_cents"),
        subject="Invoice {number} over {total_cents}",
        text="Invoice {number} ({invoice_id}) over {total_cents} is ready.",
    ),
    EventType(
        name="invoice.will_be_due",
        fields=("invoice_id", "number", "due_cents", "due_on"),
        subject="Invoice {number} is due on {due_on}",
        text="{due_cents} of invoice {number} ({invoice_id}) are due on {due_on}. Pay by transfer, and name the number "
        "of the invoice.",
    ),
    EventType(
        name="invoice.overdue",
        fields=("invoice_id", "number", "due_cents", "due_on"),
        subject="Invoice {number} is overdue",
        text="{due_cents} of invoice {number} ({invoice_id}) were due on {due_on}. Pay by transfer, and name the "
        "number of the invoice. If your payment is on its way, there is nothing to do.",
    ),
    EventType(
        name="invoice.payment_failed",
        fields=("invoice_id", "number", "due_cents", "reason", "next_attempt", "url"),
        subject="The payment of invoice {number} failed",
        text="The payment of {due_cents} for invoice {number} ({invoice_id}) was not accepted: {reason}\n\n"
        "Next attempt: {next_attempt}. Check your payment method, or pay here:\n\n{url}",
    ),
    EventType(
        name="invoice.payment_action_required",
        fields=("invoice_id", "number", "due_cents", "url"),
        subject="Confirm the payment of invoice {number}",
        text="Your bank asks you to confirm the payment of {due_cents} for invoice {number} ({invoice_id}):\n\n{url}",
    ),
    EventType(
        name=BATCH_ENDED,
        fields=("batch_id", "status", "total", "completed", "failed", "output_file_id", "error_file_id"),
        subject="Batch {batch_id} is {status}",
        text="The batch {batch_id} is {status}: of its {total} lines, {completed} have an answer and {failed} failed.",
    ),
    EventType(
        name="tenant.suspended",
        fields=("reason",),
        subject="Your account is suspended",
        text="Requests are refused from now on: {reason}",
    ),
    EventType(
        name="tenant.restored",
        fields=("reason",),
        subject="Your account is active again",
        text="Requests are accepted again: {reason}",
    ),
    EventType(
        name=ENDPOINT_DISABLED,
        fields=("endpoint_id", "address", "reason"),
        subject="Alerts to one of your endpoints have stopped",
        text="The endpoint {endpoint_id} ({address}) was disabled: {reason}\n\n"
        "Repair it, set its status to active, and replay what it has missed.",
    ),
    EventType(
        name=ENDPOINT_TEST,
        fields=("endpoint_id",),
        subject="Test message",
        text="This is the test message that you asked for. Alerts arrive at this address.",
        subscribable=False,
    ),
    EventType(
        name=ENDPOINT_CONFIRMATION,
        fields=("endpoint_id",),
        subject="Confirm this address",
        text="Somebody wants to receive alerts of a Tenora account at this address. To agree, confirm the endpoint "
        "{endpoint_id} with this code:\n\n    {code}\n\n"
        "If this was not you, ignore this message; no alert comes without the code.",
        subscribable=False,
    ),
)

EVENT_TYPES: Final[Mapping[str, EventType]] = {each.name: each for each in _ALL}
SUBSCRIBABLE: Final = tuple(each.name for each in _ALL if each.subscribable)
