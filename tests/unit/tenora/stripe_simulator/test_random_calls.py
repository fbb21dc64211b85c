"""Random calls, sensible and senseless ones: none is a 500, each answer has its class's shape, the money adds up."""

import asyncio
import random
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora.stripe_simulator import cards, checkout, customers, intents, returns
from tenora.stripe_simulator.api import ApiRequest, StripeApi
from tenora.stripe_simulator.cards import CARDS
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.operations import OPERATIONS, Operation
from tenora.stripe_simulator.simulation import Simulation
from tenora.stripe_simulator.store import SimulatorStore
from tests.fixtures.examples import examples
from tests.fixtures.stripe_simulator import problems

CALLS = 80
ODD = ("", "0", "-1", "12.5", "true", "x" * 300, "999999999999999999", "null", "{}", "cus_1", "é\x00")
PREFIXES = {
    "customer": "cus", "customers": "cus", "payment_method": "pm", "payment_methods": "pm", "payment_intent": "pi",
    "payment_intents": "pi", "setup_intents": "seti", "refunds": "re", "disputes": "du", "sessions": "cs_test",
    "test_clock": "clock", "test_clocks": "clock", "starting_after": "pi",
}  # fmt: skip
ESSENTIAL = {"customer", "payment_method", "confirm", "off_session", "line_items"}
MONEY = 4 * [one for one in OPERATIONS if one.run in (intents.create, returns.refund, checkout.create)]
PRICE = "line_items[0][price_data]"


class Walk:
    """One sequence of calls on an account of its own."""

    def __init__(self, folder, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = SimulatorStore(folder)
        self.api = StripeApi(self.store, "http://127.0.0.1:1")
        self.succeeded = 0

    def ids(self, prefix: str) -> list[str]:
        return [row[0] for row in self.store.sql.execute("SELECT id FROM objects WHERE instr(id, ?) = 1", (prefix,))]

    def one(self, name: str) -> str:
        known = self.ids(PREFIXES[name] + "_")
        return self.random.choice(known) if known and self.random.random() > 0.05 else f"{PREFIXES[name]}_none"

    def values(self, name: str) -> dict[str, str]:
        """Form pairs of one parameter, mostly sensible."""
        choose = self.random.choice
        if self.random.random() < 0.02:
            return {name: choose(ODD)}
        amount = choose(("1", "50", "700", "2500", "2500", "2500"))
        known = {
            "amount": {name: amount},
            "confirm": {name: "true"},
            "created": {"created[gte]": "1"},
            "currency": {name: choose(("usd", "usd", "eur"))},
            "frozen_time": {name: str(self.random.randrange(1_800_000_000, 1_830_000_000))},
            "invoice_settings": {"invoice_settings[default_payment_method]": self.one("payment_method")},
            "limit": {name: "3"},
            "line_items": {
                f"{PRICE}[currency]": "usd", f"{PRICE}[unit_amount]": amount, f"{PRICE}[product_data][name]": "Credits",
                "line_items[0][quantity]": "1",
            },
            "metadata": {"metadata[tenora_id]": "x"},
            "mode": {name: choose(("payment", "payment", "setup"))},
            "off_session": {name: choose(("true", "true", "false"))},
            "success_url": {name: "http://127.0.0.1:1/done"},
            "email": {name: "ada@example.com"},
        }  # fmt: skip
        if name in PREFIXES:
            return {name: self.one(name)}
        return known.get(name, {})

    def prepare(self) -> None:
        """Two customers with a card each."""
        create, attach = (one for one in OPERATIONS if one.run in (customers.create, cards.attach))
        for _ in range(2):
            self.send(create, {})
            self.send(attach, {"customer": self.ids("cus_")[-1]}, "pm_card_visa")

    def call(self) -> None:
        operation = self.random.choice([*OPERATIONS, *MONEY])
        form: dict[str, str] = {}
        for each in msgspec.structs.fields(operation.parameters):
            if self.random.random() < (0.97 if each.required or each.name in ESSENTIAL else 0.3):
                form |= self.values(each.name)
        self.send(operation, form)
        if self.random.random() < 0.3 and (sessions := self.ids("cs_test_")):
            self.act(self.random.choice(sessions))

    def act(self, session: str) -> None:
        """The owner of a card does something on a page."""
        card = self.random.choice([*CARDS, None])
        sim, confirmed = Simulation(self.store, ""), self.random.random() < 0.5 if card is None else None
        try:
            sim.run(lambda sim: checkout.act(sim, session, card=f"pm_card_{card}", confirmed=confirmed))
        except ApiError as refused:
            assert refused.status in (400, 402)  # noqa: PT017 - a refusal is one of two fine ends

    def send(self, operation: Operation, form: dict[str, str], subject: str | None = None) -> None:
        if subject is None and "{id}" in operation.path:
            subject = self.one(operation.path.split("/{id}")[0].split("/")[-1])
            if operation.run is cards.attach and self.random.random() < 0.7:
                subject = f"pm_card_{self.random.choice(list(CARDS))}"
        path = operation.path.replace("{id}", subject or "")
        headers = {"authorization": "Bearer sk_test_1"} | (
            {"idempotency-key": "k"} if self.random.random() < 0.05 else {}
        )
        request = ApiRequest(operation.method, path, urlencode(form), headers, "req_1")
        answer = asyncio.run(self.api.answer(request))
        assert answer.status in (200, 400, 402, 404), (request, answer.body)
        if answer.status == 200:
            self.succeeded += 1
            assert answer.body.get("deleted") or problems(answer.body) == [], request

    def check_money(self) -> None:
        for intent in self.store.select("payment_intent"):
            paid = [each for each in self.store.select("charge", payment_intent=intent["id"]) if each["paid"]]
            assert sum(each["amount"] for each in paid) == intent["amount_received"]
            assert len(paid) == (intent["status"] == "succeeded")
            refunds = self.store.select("refund", payment_intent=intent["id"], status="succeeded")
            returned = sum(each["amount"] for each in refunds)
            assert returned == sum(each["amount_refunded"] for each in paid) <= intent["amount_received"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("walk")


@examples(100, quick=8)
@given(seed=st.integers(0, 1 << 32))
def test_no_call_fails_and_the_money_adds_up(folders, seed):
    walk = Walk(folders(), seed)
    try:
        walk.prepare()
        for _ in range(CALLS):
            walk.call()
        walk.check_money()
        assert walk.succeeded > CALLS // 10
    finally:
        walk.store.close()
