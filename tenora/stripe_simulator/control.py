"""``/_simulator/…``: the simulator's own routes, which Stripe does not have. They move the clock, plan faults, change
how events are delivered, and do what a card's owner, a bank or an operator would do.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.exceptions import ClientException

from tenora.stripe_simulator import charges, checkout, faults, invoices, test_clocks, webhooks
from tenora.stripe_simulator.annotations import API_VERSION
from tenora.stripe_simulator.cards import card_name
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.faults import Fault
from tenora.stripe_simulator.simulation import Object, Simulation
from tenora.stripe_simulator.store import SimulatorStore
from tenora.stripe_simulator.webhooks import EventDelivery


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ClockMove(_Body, frozen=True):
    advance_s: int


class DeliveryMode(_Body, frozen=True):
    """How events are posted. ``copies`` sends each several times, ``order`` is that within one look at what is due."""

    paused: bool = False
    copies: int = 1
    delay_ms: int = 0
    order: Literal["created", "reversed", "shuffled"] = "created"


class CardChange(_Body, frozen=True):
    card: str


class OwnerAtCheckout(_Body, frozen=True):
    """What the owner does: enters a card, or answers 3D Secure."""

    card: str | None = None
    confirmed: bool | None = None


class OwnerAnswer(_Body, frozen=True):
    confirmed: bool


class NewDispute(_Body, frozen=True):
    charge: str
    reason: str = "fraudulent"


class DisputeEnd(_Body, frozen=True):
    status: Literal["won", "lost"]


class Listener(_Body, frozen=True):
    """Where events go. During a rotation both secrets sign; no types are all types."""

    url: str
    secrets: list[str]
    types: list[str] = []


class Control:
    """Runs a control's work in one transaction, with the errors of the API."""

    def __init__(self, store: SimulatorStore, base_url: str, delivery: EventDelivery) -> None:
        self.store, self.base_url, self.delivery = store, base_url, delivery

    def run(self, work: Callable[[Simulation], Any]) -> Any:
        sim = Simulation(self.store, self.base_url)
        refused: ApiError | None = None
        with self.store.transaction():
            try:
                return work(sim)
            except ApiError as error:
                if not error.keeps_changes:
                    raise
                refused = error
        raise refused


@get("/status")
async def read_status(control: Control) -> dict[str, Any]:
    sim = Simulation(control.store, control.base_url)
    waiting = control.store.sql.execute("SELECT count(*) FROM deliveries").fetchone()[0]
    return {"simulator": True, "api_version": API_VERSION, "clock": sim.now(), "waiting_deliveries": waiting}


@post("/clock", status_code=200)
async def move_clock(data: ClockMove, control: Control) -> dict[str, int]:
    """Move the simulator's own clock forward: keys are forgotten, sessions expire."""
    if not 0 < data.advance_s <= 2 * 366 * 86_400:
        raise ClientException("advance_s must be 1 to 63,244,800 (two years)")

    def move(sim: Simulation) -> dict[str, int]:
        sim.store.set("clock_offset_s", sim.store.setting("clock_offset_s", 0) + data.advance_s)
        test_clocks.make_due(sim)
        return {"clock": sim.now()}

    moved: dict[str, int] = control.run(move)
    return moved


@post("/faults", status_code=200)
async def plan_fault(data: Fault, control: Control) -> Fault:
    try:
        faults.plan(control.store, data)
    except ValueError as error:
        raise ClientException(str(error)) from error
    return data


@delete("/faults", status_code=200)
async def forget_faults(control: Control) -> dict[str, bool]:
    faults.forget_all(control.store)
    return {"forgotten": True}


@post("/delivery", status_code=200)
async def set_delivery(data: DeliveryMode, control: Control) -> DeliveryMode:
    if not (1 <= data.copies <= 10 and 0 <= data.delay_ms <= 3_600_000):
        raise ClientException("copies must be 1 to 10 and delay_ms 0 to 3,600,000 (an hour)")
    control.store.set("delivery", msgspec.to_builtins(data))
    return data


@post("/delivery/send", status_code=200)
async def send_waiting(control: Control) -> dict[str, int]:
    """Post everything that waits, also while delivery is paused; the answer comes when it is posted."""
    return {"accepted": await control.delivery.send_due(all_waiting=True)}


@post("/listener", status_code=200)
async def set_listener(data: Listener, control: Control) -> Listener:
    webhooks.listen(control.store, data.url, data.secrets, data.types)
    return data


@delete("/listener", status_code=200)
async def forget_listener(control: Control) -> dict[str, bool]:
    """Post nothing from now on, not even what waits."""
    control.store.set("listener", None)
    control.store.sql.execute("DELETE FROM deliveries")
    return {"forgotten": True}


@post("/payment_methods/{method:str}", status_code=200)
async def change_card(method: str, data: CardChange, control: Control) -> dict[str, str]:
    """Let a saved card behave like another test card from now on, as a real one may."""
    name = card_name(data.card)
    if name is None:
        raise ClientException(f"{data.card!r} is no test card; see docs/how-to/stripe-and-its-simulator.md")

    def change(sim: Simulation) -> None:
        sim.get("payment_method", method)
        sim.store.hide(method, card=name)

    control.run(change)
    return {"card": name}


@post("/checkout/{session:str}", status_code=200)
async def act_at_checkout(session: str, data: OwnerAtCheckout, control: Control) -> Object:
    def act(sim: Simulation) -> Object:
        found = sim.get("checkout.session", session)
        if data.card is not None:
            found = checkout.submit(sim, session, data.card)
        if data.confirmed is not None:
            found = checkout.authenticate(sim, session, confirmed=data.confirmed)
        return found

    acted: Object = control.run(act)
    return acted


@post("/payment_intents/{intent:str}/authenticate", status_code=200)
async def authenticate(intent: str, data: OwnerAnswer, control: Control) -> Object:
    answered: Object = control.run(lambda sim: invoices.authenticate(sim, intent, confirmed=data.confirmed))
    return answered


@post("/disputes", status_code=200)
async def open_dispute(data: NewDispute, control: Control) -> Object:
    opened: Object = control.run(
        lambda sim: charges.open_dispute(sim, sim.get("charge", data.charge, "charge"), data.reason)
    )
    return opened


@post("/disputes/{dispute:str}", status_code=200)
async def end_dispute(dispute: str, data: DisputeEnd, control: Control) -> Object:
    ended: Object = control.run(lambda sim: charges.close_dispute(sim, dispute, data.status))
    return ended


ROUTES = (
    read_status, move_clock, plan_fault, forget_faults, set_delivery, send_waiting, set_listener, forget_listener,
    change_card, act_at_checkout, authenticate, open_dispute, end_dispute,
)  # fmt: skip
