"""``/_simulator/…``: the simulator's own operations, which Stripe does not have. They move the clock, plan faults, say
where and how events are posted, and do what a card's owner or a bank would do. Bodies are JSON.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta

from tenora.stripe_simulator import checkout, returns, webhooks
from tenora.stripe_simulator.api import FAULTS_MAX, Fault
from tenora.stripe_simulator.cards import card_name
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.operations import Operation
from tenora.stripe_simulator.parameters import Parameters, Text
from tenora.stripe_simulator.simulation import API_VERSION, Object, Simulation


class ClockMove(Parameters, frozen=True):
    advance_s: Annotated[int, Meta(ge=1, le=2 * 366 * 86_400)]


class DeliveryMode(Parameters, frozen=True):
    """How events are posted. ``copies`` sends each several times, ``order`` is that within one look at what is due."""

    paused: bool = False
    copies: Annotated[int, Meta(ge=1, le=10)] = 1
    order: Literal["created", "reversed", "shuffled"] = "created"


class Listener(Parameters, frozen=True):
    """Where events go. During a rotation both secrets sign; no types are all types."""

    url: Text
    secrets: tuple[Text, ...]
    types: tuple[Text, ...] = ()


class CardChange(Parameters, frozen=True):
    card: Text


class OwnerAtCheckout(Parameters, frozen=True):
    """What the owner does: enters a card, or answers 3D Secure."""

    card: Text | None = None
    confirmed: bool | None = None


class NewDispute(Parameters, frozen=True):
    charge: Text
    reason: Text = "fraudulent"


class DisputeEnd(Parameters, frozen=True):
    status: Literal["won", "lost"]


def _status(sim: Simulation, _: Parameters) -> Object:
    waiting = sim.store.sql.execute("SELECT count(*) FROM deliveries").fetchone()[0]
    return {"simulator": True, "api_version": API_VERSION, "clock": sim.now(), "waiting_deliveries": waiting}


def _move_clock(sim: Simulation, given: ClockMove) -> Object:
    """Keys are forgotten and sessions expire; real time does not pass."""
    sim.store.set("clock_offset_s", sim.store.setting("clock_offset_s", 0) + given.advance_s)
    checkout.expire_due(sim)
    return {"clock": sim.now()}


def _plan_fault(sim: Simulation, given: Fault) -> Object:
    planned = sim.store.setting("faults", [])
    if len(planned) >= FAULTS_MAX:
        raise ApiError(f"at most {FAULTS_MAX} faults can be planned; DELETE /_simulator/faults removes them")
    sim.store.set("faults", [*planned, given])
    return {"planned": len(planned) + 1}


def _forget_faults(sim: Simulation, _: Parameters) -> Object:
    sim.store.set("faults", [])
    return {"planned": 0}


def _set_delivery(sim: Simulation, given: DeliveryMode) -> Object:
    sim.store.set("delivery", given)
    return {"paused": given.paused}


def _set_listener(sim: Simulation, given: Listener) -> Object:
    webhooks.listen(sim.store, given.url, given.secrets, given.types)
    return {"url": given.url}


def _forget_listener(sim: Simulation, _: Parameters) -> Object:
    """Post nothing from now on, not even what waits."""
    sim.store.set("listener", None)
    sim.store.sql.execute("DELETE FROM deliveries")
    return {"url": None}


def _change_card(sim: Simulation, given: CardChange, method: str) -> Object:
    """Let a saved card behave like another test card from now on, as a real one may."""
    name = card_name(given.card)
    if name is None:
        raise ApiError(f"{given.card!r} is no test card; see docs/how-to/stripe-and-its-simulator.md", param="card")
    sim.store.hide(sim.get("payment_method", method)["id"], card=name)
    return {"card": name}


def _act_at_checkout(sim: Simulation, given: OwnerAtCheckout, session: str) -> Object:
    return checkout.act(sim, session, card=given.card, confirmed=given.confirmed)


CONTROLS: Final = (
    Operation("GET", "/_simulator/status", Parameters, _status),
    Operation("POST", "/_simulator/clock", ClockMove, _move_clock),
    Operation("POST", "/_simulator/faults", Fault, _plan_fault),
    Operation("DELETE", "/_simulator/faults", Parameters, _forget_faults),
    Operation("POST", "/_simulator/delivery", DeliveryMode, _set_delivery),
    Operation("POST", "/_simulator/listener", Listener, _set_listener),
    Operation("DELETE", "/_simulator/listener", Parameters, _forget_listener),
    Operation("POST", "/_simulator/payment_methods/{id}", CardChange, _change_card),
    Operation("POST", "/_simulator/checkout/{id}", OwnerAtCheckout, _act_at_checkout),
    Operation(
        "POST", "/_simulator/disputes", NewDispute,
        lambda sim, given: returns.open_dispute(sim, sim.get("charge", given.charge, "charge"), given.reason),
    ),
    Operation(
        "POST", "/_simulator/disputes/{id}", DisputeEnd,
        lambda sim, given, dispute: returns.close_dispute(sim, dispute, given.status),
    ),
)  # fmt: skip
