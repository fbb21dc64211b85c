"""Money that goes back: refunds of a payment, and disputes of its charge."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from tenora.stripe_simulator import cards
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import ListParameters, Text, WithMetadata
from tenora.stripe_simulator.simulation import Object, Simulation


class NewRefund(WithMetadata, frozen=True, kw_only=True):
    payment_intent: Text
    amount: Annotated[int, Meta(ge=1)] | None = None  # all that is left
    reason: Literal["duplicate", "fraudulent", "requested_by_customer"] | None = None


class ListReturns(ListParameters, frozen=True):
    payment_intent: Text | None = None


def refund(sim: Simulation, given: NewRefund) -> Object:
    """Return part of a payment, or all that is left of it."""
    intent = sim.get("payment_intent", given.payment_intent, "payment_intent")
    if intent["status"] != "succeeded":
        raise ApiError(
            f"This PaymentIntent ({intent['id']}) does not have a successful charge to refund.", param="payment_intent"
        )
    charge = sim.get("charge", intent["latest_charge"])
    left = charge["amount"] - charge["amount_refunded"]
    amount = left if given.amount is None else given.amount
    if charge["disputed"]:
        raise ApiError(f"Charge {charge['id']} has been charged back; cannot issue a refund.", code="charge_disputed")
    if left == 0:
        raise ApiError(f"Charge {charge['id']} has already been refunded.", code="charge_already_refunded")
    if amount > left:
        raise ApiError(
            f"Refund amount ({amount} cents) is greater than unrefunded amount on charge ({left} cents)", param="amount"
        )
    card, _ = cards.behaviour(sim, sim.get("payment_method", charge["payment_method"]))
    fields: dict[str, Any] = {
        "amount": amount,
        "charge": charge["id"],
        "currency": charge["currency"],
        "metadata": given.metadata,
        "payment_intent": intent["id"],
        "reason": given.reason,
        "status": "failed" if card.refund_fails else "succeeded",
    }
    if card.refund_fails:
        fields["failure_reason"] = "expired_or_canceled_card"
    made = sim.create("refund", fields, event="refund.created")
    if card.refund_fails:
        sim.emit("refund.failed", made)
        return made
    refunded = charge["amount_refunded"] + amount
    changes = {"amount_refunded": refunded, "refunded": refunded == charge["amount"]}
    sim.save(charge | changes, "charge.refunded")
    return made


def open_dispute(sim: Simulation, charge: Object, reason: str) -> Object:
    """The card's owner denies the charge: its amount is taken back at once."""
    if charge["disputed"] or not charge["paid"]:
        raise ApiError(f"Charge {charge['id']} cannot be disputed: it failed or is disputed already.")
    evidence = {"has_evidence": False, "past_due": False, "submission_count": 0}
    fields = {
        "amount": charge["amount"],
        "balance_transactions": [],
        "charge": charge["id"],
        "currency": charge["currency"],
        "enhanced_eligibility_types": [],
        "evidence": {"enhanced_evidence": {}},
        "evidence_details": evidence | {"enhanced_eligibility": {}, "submission_method": "not_submitted"},
        "is_charge_refundable": False,
        "metadata": {},
        "payment_intent": charge["payment_intent"],
        "reason": reason,
        "status": "needs_response",
    }
    made = sim.create("dispute", fields, event="charge.dispute.created")
    sim.save(charge | {"disputed": True})
    sim.emit("charge.dispute.funds_withdrawn", made)
    return made


def close_dispute(sim: Simulation, dispute: str, status: str) -> Object:
    """End a dispute as ``won`` or ``lost``; a won one returns the amount."""
    found = sim.get("dispute", dispute)
    if found["status"] in ("won", "lost"):
        raise ApiError(f"The dispute is {found['status']} already.", param="status")
    closed = sim.save(found | {"status": status})
    if status == "won":
        sim.emit("charge.dispute.funds_reinstated", closed)
    sim.emit("charge.dispute.closed", closed)
    return closed
