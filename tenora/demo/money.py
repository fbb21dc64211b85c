"""The demo's money: a plan change, credits, a hard limit, a paid invoice, a credit note, and a card that is declined.

It runs while the fine-tunes train, on tenants of its own. Payments go to the Stripe simulator: no real money.
"""

import functools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from rich.console import Console

from core.money import cents_to_nanos, format_usd
from tenora.demo.control import ControlPlane
from tenora.demo.documents import save_invoice_documents
from tenora.demo.report import table
from tenora.demo.tenants import LIMITS, PRICES
from tenora.stack.base_model import MODEL_ID

_DOLLAR: Final = 1_000_000_000
_FEES: Final = {"basic": 20 * _DOLLAR, "pro": 50 * _DOLLAR}
_DEAR: Final = {"input_nanos": 10_000_000, "cached_input_nanos": 5_000_000, "output_nanos": 50_000_000}
"""Prices at which a few calls make an invoice worth paying."""

_GOOD_CARD: Final = "4242424242424242"
_DECLINED_CARD: Final = "4000000000000341"  # it can be saved, and every charge of it is declined
_WAIT_S: Final = 30
_DUNNING_DAYS: Final = (3, 5, 7, 14)
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class Payer:
    """A tenant of this part of the demo."""

    id: str
    name: str
    key: str
    control: ControlPlane


def show_money(status: dict[str, Any], root: Path, console: Console) -> dict[str, Any]:
    """Run and print every step. Raises TenoraError or RuntimeError when a step does not happen."""
    admin = ControlPlane(status["control_url"], status["admin_key"])
    money = _Money(status, admin, root, console)
    console.rule(f"Money, paid at the Stripe simulator at {status['stripe_simulator_url']}", align="left")
    payer = money.tenant("Cedar Labs", "basic")
    money.plan_change(payer)
    money.credits(payer)
    money.hard_limit(payer)
    invoice = money.paid_invoice(payer)
    money.credit_note(invoice)
    money.declined_card()
    return {"invoice": invoice["number"], "total_cents": invoice["total_cents"]}


class _Money:
    def __init__(self, status: dict[str, Any], admin: ControlPlane, root: Path, console: Console) -> None:
        self._status = status
        self._admin = admin
        self._root = root
        self._console = console
        self._simulator = httpx.Client(base_url=status["stripe_simulator_url"], timeout=30)
        self._gateway = httpx.Client(base_url=status["gateway_url"], timeout=60)
        run = secrets.token_hex(3)
        self._plans = {name: f"{name}-{run}" for name in _FEES}
        for name, fee in _FEES.items():
            prices = PRICES | _DEAR | {"base_fee_nanos": fee, "base_fee_when": "advance"}
            admin.post("/api/v1/admin/plans", {"name": self._plans[name], "limits": LIMITS, "prices": prices})

    def tenant(self, name: str, plan: str) -> Payer:
        made = self._admin.post(
            "/api/v1/admin/tenants", {"name": f"{name} {secrets.token_hex(3)}", "plan": self._plans[plan]}
        )
        key = self._admin.post(f"/api/v1/admin/tenants/{made['id']}/api-keys", {"name": "demo"})["key"]
        return Payer(id=made["id"], name=name, key=key, control=ControlPlane(self._status["control_url"], key))

    def plan_change(self, payer: Payer) -> None:
        """From one plan to a dearer one, now: both fees are prorated to the second."""
        self._admin.put(f"/api/v1/admin/tenants/{payer.id}/plan", {"plan": self._plans["pro"], "begins": "now"})
        draft = payer.control.get("/api/v1/invoices/draft")["drafts"][-1]
        fees = [line for line in draft["lines"] if line["kind"] in ("base_fee", "proration")]
        if len(fees) < 2:
            raise RuntimeError(f"the draft has no prorated fees: {draft['lines']}")
        self._console.print(
            table(
                f"{payer.name} changes from $20 to $50 a month, now. Its draft:",
                ["line", "from", "until", "exact"],
                [
                    [
                        line["description"] or line["kind"],
                        line["covers_from"][:19],
                        line["covers_until"][:19],
                        format_usd(line["amount_nanos"]),
                    ]
                    for line in fees
                ],
            )
        )

    def credits(self, payer: Payer) -> None:
        """Promotional credit that usage burns."""
        credit = {"kind": "promotional", "amount_nanos": _DOLLAR, "models": [MODEL_ID]}
        self._admin.post(f"/api/v1/admin/tenants/{payer.id}/credits", credit)
        before = payer.control.get("/api/v1/credits")["balance_nanos"]
        self._ask(payer).raise_for_status()
        after = self._until("credit to burn", lambda: self._below(payer, before))
        self._console.print(f"{payer.name}: $1 of credit burns down to {format_usd(after)} with a call")

    def hard_limit(self, payer: Payer) -> None:
        """A limit below what is spent today stops the tenant at once; removing it lets it go on."""
        limit = payer.control.post("/api/v1/spend-limits", {"scope": "tenant", "window": "day", "amount_nanos": 1_000})
        refused = self._until("the limit to refuse a call", lambda: self._refused(payer))
        error = refused.json()["error"]
        self._console.print(f"hard limit: {refused.status_code} {error['code']}: {error['message']}")
        payer.control.delete(f"/api/v1/spend-limits/{limit['id']}")
        self._until("calls after the limit", lambda: self._ask(payer).is_success)

    def paid_invoice(self, payer: Payer) -> dict[str, Any]:
        """A saved card, a closed period, a payment; PDF and explanation are saved."""
        self._save_card(payer, _GOOD_CARD)
        for _ in range(3):
            self._ask(payer).raise_for_status()
        made = self._close(payer)
        invoice: dict[str, Any] = self._until("the payment", lambda: self._in_status(payer, made["id"], "paid"))
        saved = save_invoice_documents(payer.control, invoice["id"], self._root)
        self._console.print(
            f"{payer.name}: invoice {invoice['number']} over {_cents(invoice['total_cents'])} is paid (simulated); "
            f"its {saved.requests} requests are rated again and equal\n  {saved.pdf}\n  {saved.explanation}"
        )
        return invoice

    def credit_note(self, invoice: dict[str, Any]) -> None:
        """A part of the paid invoice goes back to the card."""
        note = self._admin.post(
            f"/api/v1/admin/invoices/{invoice['id']}/credit-notes",
            {"amount_cents": 50, "to": "refund", "reason": "an hour without service"},
        )
        self._console.print(f"credit note {note['number']}: {_cents(note['total_cents'])} are refunded to the card")

    def declined_card(self) -> None:
        """A card that is declined on every day of the schedule: the tenant is suspended, and back once it has paid."""
        payer = self.tenant("Dune Robotics", "basic")
        clock = self._stripe("/v1/test_helpers/test_clocks", {"frozen_time": str(int(time.time()))})
        self._admin.put(f"/api/v1/admin/payments/queues/{payer.id}", {"test_clock": clock["id"]})
        self._ask(payer).raise_for_status()
        self._save_card(payer, _DECLINED_CARD)
        invoice = self._close(payer)
        start = clock["frozen_time"]
        for attempt, day in enumerate(_DUNNING_DAYS, start=1):
            self._until("an attempt", functools.partial(self._tried, payer, min(attempt, 4)))
            self._stripe(
                f"/v1/test_helpers/test_clocks/{clock['id']}/advance",
                {"frozen_time": str(start + day * 86_400 + 60)},
            )
        self._until("the suspension", lambda: self._standing(payer) == "suspended")
        refused = self._until("a refusal", lambda: self._refused(payer))
        self._save_card(payer, _GOOD_CARD)
        self._until("the payment", lambda: self._in_status(payer, invoice["id"], "paid"))
        begun = time.monotonic()
        self._until("calls after the payment", lambda: self._ask(payer).is_success)
        self._console.print(
            f"{payer.name}: {invoice['number']} was declined on days 0, 3, 5 and 7 of a test clock and suspended on day"
            f" 14 ({refused.status_code} {refused.json()['error']['code']}); paid with another card, its calls were"
            f" answered {time.monotonic() - begun:.1f} s later"
        )

    def _save_card(self, payer: Payer, number: str) -> None:
        back = dict.fromkeys(("success_url", "cancel_url"), self._status["control_url"])
        asked = payer.control.post("/api/v1/billing/setup", back)
        page = self._until("the page", lambda: self._page(payer, asked["id"]))
        answer = self._simulator.post(page["url"], data={"card": number})
        if not answer.has_redirect_location:
            raise RuntimeError(f"the simulator refuses the card: {answer.text}")

    def _page(self, payer: Payer, page_id: str) -> dict[str, Any] | None:
        page: dict[str, Any] = payer.control.get(f"/api/v1/billing/pages/{page_id}")
        return page if page["state"] == "ready" else None

    def _close(self, payer: Payer) -> dict[str, Any]:
        made = self._admin.post("/api/v1/admin/billing/close", {"until": "now"})["invoices"]
        found: dict[str, Any] = next(each for each in made if each["tenant_id"] == payer.id)
        return found

    def _in_status(self, payer: Payer, invoice_id: str, status: str) -> dict[str, Any] | None:
        invoice: dict[str, Any] = payer.control.get(f"/api/v1/invoices/{invoice_id}")
        return invoice if invoice["status"] == status else None

    def _tried(self, payer: Payer, times: int) -> bool:
        listed = self._admin.get(f"/api/v1/admin/payments/queues/{payer.id}/operations")["data"]
        tried = [each for each in listed if each["kind"] == "collect_invoice" and each["state"] != "pending"]
        return len(tried) >= times

    def _standing(self, payer: Payer) -> str | None:
        listed = self._admin.get("/api/v1/admin/payments/queues")["data"]
        return next((each["standing"] for each in listed if each["id"] == payer.id), None)

    def _ask(self, payer: Payer) -> httpx.Response:
        body = {
            "model": MODEL_ID,
            "messages": [{"role": "user", "content": "Name a colour."}],
            "max_tokens": 8,
        }
        return self._gateway.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {payer.key}"})

    def _refused(self, payer: Payer) -> httpx.Response | None:
        answer = self._ask(payer)
        return answer if answer.is_client_error else None

    def _below(self, payer: Payer, nanos: int) -> int | None:
        now: int = payer.control.get("/api/v1/credits")["balance_nanos"]
        return now if now < nanos else None

    def _stripe(self, path: str, form: dict[str, str]) -> dict[str, Any]:
        answer = self._simulator.post(path, data=form, headers={"Authorization": "Bearer sk_test_simulator"})
        answer.raise_for_status()
        made: dict[str, Any] = answer.json()
        return made

    def _until(self, what: str, look: Callable[[], _Found | None]) -> _Found:
        deadline = time.monotonic() + _WAIT_S
        while True:
            if found := look():
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come within {_WAIT_S} s")
            time.sleep(0.1)


def _cents(cents: int) -> str:
    return format_usd(cents_to_nanos(cents))
