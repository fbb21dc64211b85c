"""What happens when a card is charged: success, decline or a demand for authentication. Refunds and disputes, too."""

from typing import Any

from tenora.stripe_simulator import payment_methods
from tenora.stripe_simulator.cards import advice
from tenora.stripe_simulator.errors import ApiError, not_simulated
from tenora.stripe_simulator.simulation import Object, Simulation


class Declined(Exception):
    """A charge failed; ``needs_action`` if only its owner's confirmation is missing."""

    def __init__(self, code: str, decline_code: str, charge: str | None, *, needs_action: bool = False) -> None:
        super().__init__(code)
        self.code, self.decline_code, self.charge, self.needs_action = code, decline_code, charge, needs_action


def charge(sim: Simulation, intent: Object, method: Object, *, off_session: bool, authenticated: bool) -> Object:
    """A charge that succeeded. Raises Declined; a failed charge is stored all the same."""
    card, set_up = payment_methods.behaviour(sim, method)
    must_confirm = card.authentication == "always" or (card.authentication == "unless_set_up" and not set_up)
    if must_confirm and not authenticated:
        failed = _store(sim, intent, method, "authentication_required") if off_session else None
        raise Declined(
            "authentication_required", "authentication_required", failed["id"] if failed else None, needs_action=True
        )
    if card.decline:
        failed = _store(sim, intent, method, card.decline)
        sim.emit("charge.failed", failed)
        raise Declined(card.code or "card_declined", card.decline, failed["id"])
    made = _store(sim, intent, method, None)
    sim.emit("charge.succeeded", made)
    if card.disputed:
        open_dispute(sim, made, "fraudulent")
    return made


def _store(sim: Simulation, intent: Object, method: Object, decline: str | None) -> Object:
    paid = decline is None
    fields: dict[str, Any] = {
        "amount": intent["amount"],
        "amount_captured": intent["amount"] if paid else 0,
        "amount_refunded": 0,
        "billing_details": {},
        "captured": paid,
        "currency": intent["currency"],
        "customer": intent["customer"],
        "description": intent["description"],
        "disputed": False,
        "failure_code": decline,
        "failure_message": advice(decline) if decline else None,
        "metadata": intent["metadata"],
        "paid": paid,
        "payment_intent": intent["id"],
        "payment_method": method["id"],
        "refunded": False,
        "status": "succeeded" if paid else "failed",
    }
    return sim.create("charge", "ch", fields, customer=intent["customer"])


def refund(sim: Simulation, given: dict[str, Any]) -> Object:
    if ("charge" in given) == ("payment_intent" in given):
        raise ApiError(
            "One of the following params should be provided for this request: payment_intent or charge.",
            code="parameter_missing",
        )
    if "charge" in given:
        charged = sim.get("charge", given["charge"], "charge")
    else:
        intent = sim.get("payment_intent", given["payment_intent"], "payment_intent")
        if intent["status"] != "succeeded":
            raise ApiError(
                f"This PaymentIntent ({intent['id']}) does not have a successful charge to refund.",
                param="payment_intent",
            )
        charged = sim.get("charge", intent["latest_charge"])
    return make_refund(sim, charged, given.get("amount"), given.get("reason"), given.get("metadata") or {})


def make_refund(
    sim: Simulation, charged: Object, amount: int | None, reason: str | None, metadata: dict[str, str]
) -> Object:
    """Return part of a charge, or all that is left of it."""
    left = charged["amount"] - charged["amount_refunded"]
    if charged["disputed"]:
        raise ApiError(f"Charge {charged['id']} has been charged back; cannot issue a refund.", code="charge_disputed")
    if left <= 0:
        raise ApiError(f"Charge {charged['id']} has already been refunded.", code="charge_already_refunded")
    amount = left if amount is None else amount
    if not 0 < amount <= left:
        raise ApiError(
            f"Refund amount ({amount} cents) is greater than unrefunded amount on charge ({left} cents)", param="amount"
        )
    method = sim.get("payment_method", charged["payment_method"])
    card, _ = payment_methods.behaviour(sim, method)
    fields = {
        "amount": amount,
        "charge": charged["id"],
        "currency": charged["currency"],
        "customer": charged["customer"],
        "metadata": metadata,
        "payment_intent": charged["payment_intent"],
        "reason": reason,
        "status": "failed" if card.refund_fails else "succeeded",
        "failure_reason": "expired_or_canceled_card" if card.refund_fails else None,
    }
    made = sim.create("refund", "re", fields, customer=charged["customer"])
    sim.emit("refund.created", made)
    if card.refund_fails:
        sim.emit("refund.failed", made)
        return made
    charged["amount_refunded"] += amount
    charged["refunded"] = charged["amount_refunded"] == charged["amount"]
    sim.save(charged)
    sim.emit("charge.refunded", charged, {"amount_refunded": charged["amount_refunded"] - amount})
    return made


def open_dispute(sim: Simulation, charged: Object, reason: str) -> Object:
    """The card's owner denies the charge: its amount is taken back at once."""
    if charged["disputed"] or not charged["paid"]:
        raise ApiError(f"Charge {charged['id']} cannot be disputed: it failed or is disputed already.")
    fields = {
        "amount": charged["amount"],
        "balance_transactions": [],
        "charge": charged["id"],
        "currency": charged["currency"],
        "enhanced_eligibility_types": [],
        "evidence": {"enhanced_evidence": {}},
        "evidence_details": {
            "enhanced_eligibility": {},
            "has_evidence": False,
            "past_due": False,
            "submission_count": 0,
            "submission_method": "not_submitted",
        },
        "is_charge_refundable": False,
        "metadata": {},
        "payment_intent": charged["payment_intent"],
        "reason": reason,
        "status": "needs_response",
    }
    made = sim.create("dispute", "du", fields, customer=charged["customer"])
    charged["disputed"] = True
    sim.save(charged)
    sim.emit("charge.dispute.created", made)
    sim.emit("charge.dispute.funds_withdrawn", made)
    return made


def close_dispute(sim: Simulation, dispute: str, status: str) -> Object:
    """End a dispute as ``won`` or ``lost``; a won one returns the amount."""
    found = sim.get("dispute", dispute)
    if status not in ("won", "lost") or found["status"] in ("won", "lost"):
        raise not_simulated(f"ending a dispute that is {found['status']} as {status}", "status")
    found["status"] = status
    sim.save(found)
    if status == "won":
        sim.emit("charge.dispute.funds_reinstated", found)
    sim.emit("charge.dispute.closed", found)
    return found
