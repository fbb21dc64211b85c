"""Test clocks, and what becomes due when time passes: Checkout sessions expire.

The simulator's own clock (real time and an offset) does the same for customers without a test clock.
"""

from typing import Any, Final

from tenora.stripe_simulator import checkout
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.simulation import Object, Simulation

_ADVANCE_S_MAX: Final = 2 * 366 * 86_400  # without subscriptions, https://docs.stripe.com/billing/testing/test-clocks
_LIFE_S: Final = 30 * 86_400


def create(sim: Simulation, given: dict[str, Any]) -> Object:
    fields = {
        "deletes_after": sim.now() + _LIFE_S,
        "frozen_time": given["frozen_time"],
        "name": given.get("name"),
        "status": "ready",
        "status_details": {},
    }
    clock = sim.create("test_helpers.test_clock", "clock", fields)
    sim.emit("test_helpers.test_clock.created", clock)
    return clock


def advance(sim: Simulation, given: dict[str, Any], clock_id: str) -> Object:
    """Move the clock. Everything due happens before the answer, which says ``advancing`` all the same."""
    clock = sim.get("test_helpers.test_clock", clock_id)
    target = given["frozen_time"]
    if target <= clock["frozen_time"]:
        raise ApiError("Cannot advance a test clock to the past or to its current time.", param="frozen_time")
    if target > clock["frozen_time"] + _ADVANCE_S_MAX:
        raise ApiError("Test clocks can be advanced by at most two years at a time.", param="frozen_time")
    clock |= {"frozen_time": target, "status": "ready"}
    sim.save(clock)
    sim.emit("test_helpers.test_clock.advancing", clock)
    make_due(sim)
    sim.emit("test_helpers.test_clock.ready", clock)
    return {**clock, "status": "advancing", "status_details": {"advancing": {"target_frozen_time": target}}}


def make_due(sim: Simulation) -> None:
    """Do what the clocks say is due. Idempotent: each thing happens once."""
    for session in sim.store.select("checkout.session", status="open"):
        if session["expires_at"] <= sim.now(session["customer"]):
            checkout.end(sim, session)
