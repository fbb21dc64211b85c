"""Random calls, sensible and senseless ones: none is a 500, each answer has its class's shape, the money adds up."""

import asyncio
import random
from typing import Literal, get_args, get_origin
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenora.stripe_simulator.annotations import fields_of, members, parameter_type, required
from tenora.stripe_simulator.api import ApiRequest, StripeApi
from tenora.stripe_simulator.cards import CARDS
from tenora.stripe_simulator.operations import Operation, operations
from tenora.stripe_simulator.resources import problems
from tenora.stripe_simulator.store import SimulatorStore

OPERATIONS = operations()
CALLS = 80
PREFIXES = {
    "customer": "cus", "payment_method": "pm", "payment_intent": "pi", "setup_intent": "seti", "invoice": "in",
    "invoiceitem": "ii", "charge": "ch", "refund": "re", "credit_note": "cn", "test_clock": "clock", "dispute": "du",
    "session": "cs_test", "event": "evt", "invoice_payment": "inpay",
}  # fmt: skip
FOLDERS = {
    "customers": "customer", "payment_methods": "payment_method", "payment_intents": "payment_intent",
    "setup_intents": "setup_intent", "invoices": "invoice", "invoiceitems": "invoiceitem", "charges": "charge",
    "refunds": "refund", "credit_notes": "credit_note", "test_clocks": "test_clock", "disputes": "dispute",
    "sessions": "session", "events": "event",
    "invoice_payments": "invoice_payment",
}  # fmt: skip
ESSENTIAL = {
    "customer", "invoice", "amount", "currency", "mode", "line_items", "success_url", "type", "card", "frozen_time",
    "payment_intent", "lines",
}  # fmt: skip
ODD = ("", "0", "-1", "12.5", "true", "x" * 300, "999999999999999999", "null", "{}", "cus_1", "é\x00")


class Walk:
    """One sequence of calls on an account of its own."""

    def __init__(self, folder, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = SimulatorStore(folder)
        self.api = StripeApi(self.store, OPERATIONS, "http://127.0.0.1:1")
        self.statuses: list[int] = []

    def ids(self, kind: str) -> list[str]:
        rows = self.store.sql.execute("SELECT id FROM objects WHERE instr(id, ?) = 1", (PREFIXES[kind] + "_",))
        return [row[0] for row in rows]

    def one(self, kind: str) -> str:
        known = self.ids(kind)
        return self.random.choice(known) if known and self.random.random() > 0.05 else f"{PREFIXES[kind]}_none"

    def value(self, name: str, operation: Operation) -> dict[str, str]:
        """Form pairs of one parameter, mostly sensible."""
        choose = self.random.choice
        if self.random.random() < 0.02:
            return {name: choose(ODD)}
        amount = str(choose((1, 12, 49, 50, 700, 2_500, 2_500, -60)))
        price = f"{name}[0][price_data]"
        known = {
            "frozen_time": {name: str(self.random.randrange(1_800_000_000, 1_830_000_000))},
            "invoice_settings": {f"{name}[default_payment_method]": self.one("payment_method")},
            "card": {f"{name}[token]": f"tok_{choose(list(CARDS))}"},
            "type": {name: "card"},
            "mode": {name: choose(("payment", "setup"))},
            "lines": {f"{name}[0][type]": "custom_line_item", f"{name}[0][unit_amount]": amount},
            "refunds": {f"{name}[0][refund]": self.one("refund"), f"{name}[0][amount_refunded]": amount},
            "line_items": {
                f"{price}[currency]": "usd", f"{price}[unit_amount]": amount, f"{price}[product_data][name]": "Credits",
            },
            "period": {f"{name}[start]": "1", f"{name}[end]": "2"},
            "created": {f"{name}[gte]": "1"},
            "metadata": {f"{name}[tenora_id]": "x"},
            "payment": {f"{name}[type]": "payment_intent", f"{name}[payment_intent]": self.one("payment_intent")},
            "days_until_due": {name: "30"} if self.random.random() < 0.2 else {},
            "currency": {name: choose(("usd", "usd", "usd", "usd", "eur"))},
            "payment_method": {name: choose((self.one("payment_method"), f"pm_card_{choose(list(CARDS))}"))},
            "email": {name: "ada@example.com"},
        }  # fmt: skip
        rare = ("api_version", "due_date", "expires_at", "types", "address", "collection_method", "paid_out_of_band")
        if name in PREFIXES:
            known.setdefault(name, {name: self.one(name)})
        if name in rare and self.random.random() < 0.9:
            return {}
        if name in known:
            return known[name]
        options = members(required(fields_of(parameter_type(operation.parameters))[name])[1])
        literals = [value for each in options if get_origin(each) is Literal for value in get_args(each) if value]
        if bool in options or literals:
            literals = literals or ["true", "false"]
        elif int in options:
            literals = [amount if "amount" in name or name == "balance" else "3"]
        elif str in options:
            literals = ["November"]
        return {name: choose(literals)} if literals else {}

    def call(self) -> dict:
        if self.random.random() < 0.1:  # what matters most
            invoice = self.one("invoice")
            return self.send("POST", f"/v1/invoices/{invoice}/{self.random.choice(('finalize', 'pay', 'pay'))}", {})
        if self.random.random() < 0.1:
            amount = str(self.random.choice((1, 300, 3_140)))
            wherever = self.random.choice(("refund_amount", "credit_amount", "out_of_band_amount", "memo"))
            note = {"invoice": self.one("invoice"), "amount": amount, wherever: amount}
            return self.send("POST", "/v1/credit_notes", note)
        possible = [each for each in OPERATIONS if "{id}" not in each.path or self.ids(_kind(each))]
        operation = self.random.choice(possible)
        path = operation.path
        if "{id}" in path:
            path = path.replace("{id}", self.one(_kind(operation)))
        form: dict[str, str] = {}
        for name in sorted(operation.honours - {"starting_after", "ending_before"}):
            often = name in ESSENTIAL and self.random.random() < 0.97
            if often or self.random.random() < 0.3:
                form |= self.value(name, operation)
        return self.send(operation.method, path, form, "k" if self.random.random() < 0.05 else None)

    def prepare(self) -> None:
        """Two customers with a card, an open invoice and a draft each."""
        for card in ("pm_card_visa", self.random.choice(("pm_card_chargeCustomerFail", "pm_card_createDispute"))):
            owner = self.send("POST", "/v1/customers", {"email": "ada@example.com"})["id"]
            saved = self.send("POST", f"/v1/payment_methods/{card}/attach", {"customer": owner})["id"]
            default = {"invoice_settings[default_payment_method]": saved}
            self.send("POST", f"/v1/customers/{owner}", default)
            for ending in ("finalize", None):
                invoice = self.send("POST", "/v1/invoices", {"customer": owner, "currency": "usd"})["id"]
                for amount in (700, 2_500, -60):
                    item = {"customer": owner, "invoice": invoice, "amount": str(amount)}
                    self.send("POST", "/v1/invoiceitems", item)
                if ending:
                    self.send("POST", f"/v1/invoices/{invoice}/{ending}", {})

    def send(self, method: str, path: str, form: dict[str, str], key: str | None = None) -> dict:
        headers = {"authorization": "Bearer sk_test_1"} | ({"idempotency-key": key} if key else {})
        request = ApiRequest(method=method, path=path, encoded=urlencode(form), request_id="req_1", headers=headers)
        answer = asyncio.run(self.api.answer(request))
        self.statuses.append(answer.status)
        assert answer.status in (200, 400, 402, 404), (request, answer.body)
        if answer.status == 200 and not answer.body.get("deleted"):
            assert problems(answer.body) == [], request
        return answer.body


def _kind(operation: Operation) -> str:
    return FOLDERS[operation.path.split("/{id}")[0].split("/")[-1]]


def check_money(store: SimulatorStore) -> None:
    for customer in store.select("customer"):
        if not customer.get("deleted"):
            entries = store.select("customer_balance_transaction", customer=customer["id"])
            assert sum(each["amount"] for each in entries) == customer["balance"]
            assert not entries or entries[0]["ending_balance"] == customer["balance"]
    for charge in store.select("charge"):
        refunds = [each for each in store.select("refund", charge=charge["id"]) if each["status"] == "succeeded"]
        assert sum(each["amount"] for each in refunds) == charge["amount_refunded"] <= charge["amount"]
    for invoice in store.select("invoice"):
        notes = store.select("credit_note", invoice=invoice["id"], status="issued")
        assert sum(each["total"] for each in notes) <= max(0, invoice["total"])
        assert invoice["amount_remaining"] >= 0
        if invoice["status"] == "paid":
            assert invoice["amount_remaining"] == 0
            _check_payment(store, invoice)


def _check_payment(store: SimulatorStore, invoice: dict) -> None:
    """What was paid on an invoice is one successful charge, or was paid elsewhere, or was nothing."""
    payments = store.select("invoice_payment", invoice=invoice["id"])
    intents = [store.load(each["payment"]["payment_intent"]) for each in payments]
    received = sum(intent["amount_received"] for intent in intents)
    assert received + (invoice.get("amount_paid_off_stripe") or 0) == invoice["amount_paid"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("walk")


@given(seed=st.integers(0, 1 << 32))
def test_no_call_fails_and_the_money_adds_up(folders, seed):
    walk = Walk(folders(), seed)
    try:
        walk.prepare()
        for _ in range(CALLS):
            walk.call()
        check_money(walk.store)
        assert walk.statuses.count(200) > CALLS // 10
    finally:
        walk.store.close()
