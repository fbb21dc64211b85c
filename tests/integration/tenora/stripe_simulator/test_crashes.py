"""The simulator may be killed at any instant: a change, its events and the answer under its key are kept together."""

import random
import threading
import time
from functools import partial

import pytest
import stripe

from tenora.stack.program import free_port
from tests.conftest import running, wait_until
from tests.fixtures.stripe_simulator import RunningSimulator, simulator_program
from tests.integration.tenora.stripe_simulator.conftest import SECRET, types_at

KILLS = 3


class Caller(threading.Thread):
    """Creates customers one after the other, and repeats each under its own key until it is answered."""

    def __init__(self, sdk: stripe.StripeClient) -> None:
        super().__init__()
        self.customers = sdk.v1.customers
        self.stop = threading.Event()
        self.answered: dict[str, str] = {}  # ids by key
        self.failures = 0

    def has_answers(self, count: int) -> bool:
        return len(self.answered) >= count

    def run(self) -> None:
        while not self.stop.is_set():
            key = f"key-{len(self.answered)}"
            while key not in self.answered:
                try:
                    made = self.customers.create({"metadata": {"tenora_id": key}}, {"idempotency_key": key})
                    self.answered[key] = made.id
                except stripe.APIConnectionError:
                    self.failures += 1
                    time.sleep(0.02)


@pytest.mark.scenario(133)
def test_a_key_stands_for_one_object_and_one_event_however_often_the_process_is_killed(tmp_path):
    port = free_port()
    simulator = RunningSimulator(f"http://127.0.0.1:{port}", tmp_path / "home")
    caller = Caller(simulator.sdk())
    seed = random.randrange(1 << 32)
    instants = random.Random(seed)
    for turn in range(KILLS):
        with running(simulator_program(simulator.home, port)) as process:
            if turn == 0:
                caller.start()
            enough = len(caller.answered) + 5
            wait_until(partial(caller.has_answers, enough), what=f"calls (seed {seed})")
            time.sleep(instants.random() / 20)
            process.kill()
            process.wait()
    with running(simulator_program(simulator.home, port)):
        wait_until(partial(caller.has_answers, len(caller.answered) + 1))
        caller.stop.set()
        caller.join()
        api = simulator.sdk().v1
        stored = {each.id: each.metadata.tenora_id for each in api.customers.list({"limit": 100}).auto_paging_iter()}
        events = [each.data.object.id for each in api.events.list({"limit": 100}).auto_paging_iter()]
    assert caller.failures > 0
    assert stored == {made: key for key, made in caller.answered.items()}, f"seed {seed}"
    assert sorted(events) == sorted(stored)


def test_webhooks_that_wait_and_the_clock_survive_a_restart_and_events_are_kept_for_a_month(tmp_path, receiver):
    port = free_port()
    simulator = RunningSimulator(f"http://127.0.0.1:{port}", tmp_path / "home")
    with running(simulator_program(simulator.home, port)) as process:
        api = simulator.sdk().v1
        simulator.control("POST", "listener", {"url": receiver.url, "secrets": [SECRET]})
        simulator.control("POST", "delivery", {"paused": True})
        api.customers.create({"name": "Ada"})
        simulator.control("POST", "clock", {"advance_s": 1_000})
        before = simulator.control("GET", "status")["clock"]
        process.kill()
        process.wait()
    assert receiver.received == []
    with running(simulator_program(simulator.home, port)):
        simulator.control("POST", "delivery", {})
        wait_until(lambda: receiver.received)
        assert simulator.control("GET", "status")["clock"] >= before
        assert len(api.events.list().data) == 1
        simulator.control("POST", "clock", {"advance_s": 31 * 86_400})
        assert api.events.list().data == []
    assert types_at(receiver) == ["customer.created"]


def test_a_key_that_twenty_callers_use_at_once_charges_once(simulator):
    api = simulator.sdk().v1
    owner = api.customers.create({}).id
    card = api.payment_methods.attach("pm_card_visa", {"customer": owner}).id
    wanted = {"amount": 900, "currency": "usd", "customer": owner, "payment_method": card}
    wanted |= {"confirm": True, "off_session": True}
    paid = []

    def pay() -> None:
        paid.append(simulator.sdk().v1.payment_intents.create(wanted, {"idempotency_key": "one"}).id)

    callers = [threading.Thread(target=pay) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (len(paid), len(set(paid))) == (20, 1)
    assert [charge.amount for charge in api.charges.list({"customer": owner}).data] == [900]
