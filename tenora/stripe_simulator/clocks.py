"""Test clocks of customers. What becomes due when one moves is done before the answer, which says ``advancing``."""

from typing import Final

from tenora.stripe_simulator import checkout
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.parameters import Parameters, Text
from tenora.stripe_simulator.simulation import Object, Simulation

_LIFE_S: Final = 30 * 86_400


class NewClock(Parameters, frozen=True):
    frozen_time: int
    name: Text | None = None


class ClockTarget(Parameters, frozen=True):
    frozen_time: int


def create(sim: Simulation, given: NewClock) -> Object:
    fields: Object = {
        "deletes_after": sim.now() + _LIFE_S,
        "frozen_time": given.frozen_time,
        "name": given.name,
        "status": "ready",
        "status_details": {},
    }
    return sim.create("test_helpers.test_clock", fields, event="test_helpers.test_clock.created")


def advance(sim: Simulation, given: ClockTarget, clock_id: str) -> Object:
    clock = sim.get("test_helpers.test_clock", clock_id)
    if given.frozen_time <= clock["frozen_time"]:
        raise ApiError("Cannot advance a test clock to the past or to its current time.", param="frozen_time")
    moved = sim.save(clock | {"frozen_time": given.frozen_time}, "test_helpers.test_clock.advancing")
    checkout.expire_due(sim)
    sim.emit("test_helpers.test_clock.ready", moved)
    return moved | {"status": "advancing"}
