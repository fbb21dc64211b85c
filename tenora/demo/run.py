"""Runs the demo end to end: two tenants fine-tune, upload and call adapters on one shared replica, and are billed.

It compares the token counts of engine, ledger and invoices, and reconciles everything at the end. The exit status is 1
when anything differs or a check fails, and the output names the difference.
"""

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from tenora.demo.calls import Answer, Call, Callers
from tenora.demo.checks import Isolation, check_isolation, run_into_quota
from tenora.demo.control import ControlPlane
from tenora.demo.economics import add_rates, show_economics
from tenora.demo.fine_tunes import FineTunes, dataset
from tenora.demo.flip import Flip, flip_and_roll_back, show_flip, upload_two_revisions
from tenora.demo.money import show_money
from tenora.demo.reconciliation import CountMismatchError, reconcile, wait_for_ledger
from tenora.demo.report import show_invoice, show_usage, table, write_report
from tenora.demo.tenants import TENANTS, Tenant, create_tenants
from tenora.settings import StackSettings
from tenora.stack.base_model import MODEL_ID
from tenora.stack.daemon import is_up
from tenora.stack.status import read_status
from tenora.stack.up_down import launch_stack, stop_stack, wait_until_ready

_SEED: Final = 20


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The results of all calls through the gateway."""

    accuracy_base: float
    accuracy_adapter: float
    voice: float
    isolation: Isolation
    quota: dict[str, Any]
    flip: Flip

    @property
    def violations(self) -> list[str]:
        """Descriptions of all failed checks."""
        return [*self.isolation.violations, *self.flip.violations()]


def run_demo(settings: StackSettings) -> int:
    """Run the demo; returns the exit status. Stops the stack if the demo started it."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    was_up = is_up(settings)
    started = time.monotonic()
    try:
        launch_stack(settings)
        checkpoint = settings.root / "models" / MODEL_ID
        tasks = [task for _, _, task in TENANTS]
        with FineTunes(tasks, checkpoint, settings.root / "fine-tunes") as fine_tunes:
            wait_until_ready(settings)
            violations = _run_steps(settings, console, fine_tunes, started)
    except CountMismatchError as mismatch:
        console.print(f"[bold red]The counts differ.[/] {mismatch}")
        return 1
    finally:
        if not was_up:
            stop_stack(settings)
    return 1 if violations else 0


def _run_steps(settings: StackSettings, console: Console, fine_tunes: FineTunes, started: float) -> list[str]:
    """Run and print every step; returns descriptions of the failed checks."""
    status = read_status(settings, secrets=True)
    admin = ControlPlane(status["control_url"], status["admin_key"])
    add_rates(admin)
    money = show_money(status, settings.root, console)  # while the fine-tunes train
    bank, shop = create_tenants(admin, status["control_url"])
    console.rule("Two tenants fine-tune and upload", align="left")
    names, revisions = {"": MODEL_ID}, ("", "")
    for task, folder in fine_tunes.finished():  # the first uploads while the other trains
        tenant = next(each for each in (bank, shop) if each.task is task)
        begun = time.monotonic()
        revision = tenant.control.upload_adapter(tenant.adapter, MODEL_ID, folder)
        console.print(
            f"{tenant.name}: {tenant.adapter} ready in {time.monotonic() - begun:.1f} s, {revision['sha256'][:12]}…"
        )
        names[tenant.control.get(f"/api/v1/adapters/{tenant.adapter}")["id"]] = tenant.adapter
        if tenant is shop:
            revisions = upload_two_revisions(shop, folder)
            console.print(
                f"{shop.name}: a second revision of {shop.adapter}, at half the strength; prod stays on the first"
            )
    console.rule("They call them, mixed, on one replica", align="left")
    answers = asyncio.run(_call_everything(status["gateway_url"], admin, bank, shop, revisions, console))
    console.rule("Usage, invoices, reconciliation", align="left")
    report = _bill(admin, (bank, shop), names, console)
    reconciled = _reconcile(status, console)
    economics = show_economics(admin, {tenant.id: tenant.name for tenant in (bank, shop)}, console)
    report = {
        "seconds": round(time.monotonic() - started, 1),
        "accuracy": {"base": answers.accuracy_base, "adapter": answers.accuracy_adapter},
        "voice": answers.voice,
        "isolation": {"violations": len(answers.isolation.violations), "checks": answers.isolation.checks},
        "flip": answers.flip.as_report(),
        "quota": {"status": answers.quota["status"], "code": answers.quota["code"]},
        "money": money,
        "economics": economics,
        "reconciliation": {"differences": reconciled},
        **report,
    }
    path = settings.root / "demo-report.json"
    write_report(path, report)
    for violation in answers.violations:
        console.print(f"[bold red]check failed:[/] {violation}")
    console.print(f"{report['seconds']} s in total; JSON report: {path}")
    return answers.violations


async def _call_everything(
    gateway_url: str, admin: ControlPlane, bank: Tenant, shop: Tenant, revisions: tuple[str, str], console: Console
) -> Answers:
    callers = Callers(gateway_url, {tenant.id: tenant.key for tenant in (bank, shop)})
    calls = [*_questions(bank, bank.adapter, "router"), *_questions(bank, MODEL_ID, "base")]
    calls += [*_questions(shop, shop.adapter, "voice"), *_questions(shop, MODEL_ID, "plain")]
    random.Random(_SEED).shuffle(calls)  # noqa: S311 - an order, not a secret
    try:
        begun = time.monotonic()
        with Progress(console=console, disable=not console.is_terminal) as progress:
            bar = progress.add_task(f"{len(calls)} calls", total=len(calls))
            answers = await callers.ask_all(calls, lambda _: progress.advance(bar))
        if not console.is_terminal:
            console.print(f"{len(calls)} calls in {time.monotonic() - begun:.1f} s")
        isolation = await check_isolation(callers, bank, shop, answers)
        flip = await flip_and_roll_back(callers, shop, *revisions)
        quota = await run_into_quota(admin, callers, shop, MODEL_ID)
    finally:
        await callers.close()
    right = {
        tag: _share_right(answers, bank if tag in ("router", "base") else shop, tag)
        for tag in ("router", "base", "voice", "plain")
    }
    console.print(
        table(
            "Held-out questions",
            ["task", "base model", "adapter"],
            [
                ["ticket routed to the right queue", f"{right['base']:.2f}", f"{right['router']:.2f}"],
                ["answer in the shop's voice", f"{right['plain']:.2f}", f"{right['voice']:.2f}"],
            ],
        )
    )
    show_flip(console, shop, flip)
    console.print(f"isolation: {isolation.checks} checks, {len(isolation.violations)} violations")
    console.print(f"quota: {quota['status']} {quota['code']}: {quota['message']}")
    for name, value in quota["headers"].items():
        console.print(f"  {name}: {value}")
    return Answers(
        accuracy_base=right["base"], accuracy_adapter=right["router"], voice=right["voice"],
        isolation=isolation, quota=quota, flip=flip,
    )  # fmt: skip


def _questions(tenant: Tenant, model: str, tag: str) -> list[Call]:
    """The tenant's held-out examples as calls; every second call streams."""
    return [
        Call(
            tenant=tenant.id, model=model, messages=list(tenant.task.messages(example.prompt)), stream=index % 2 == 0,  # type: ignore[arg-type] # our TypedDict is one of the SDK's
            max_tokens=tenant.task.answer_tokens_max, tag=tag, expected=example.answer,
        )
        for index, example in enumerate(tenant.task.load(dataset(tenant.task), "heldout"))
    ]  # fmt: skip


def _share_right(answers: list[Answer], tenant: Tenant, tag: str) -> float:
    judged = [tenant.task.is_right(answer.text, answer.call.expected) for answer in answers if answer.call.tag == tag]
    return round(sum(judged) / len(judged), 4)


def _bill(
    admin: ControlPlane, tenants: tuple[Tenant, Tenant], names: dict[str, str], console: Console
) -> dict[str, Any]:
    """Wait for the ledger, close the period, and compare engine, ledger and invoices.

    Raises CountMismatchError when their tokens differ.
    """
    engine_tokens, ledger = wait_for_ledger(admin, tenants)
    closed = {
        invoice["tenant_id"]: invoice
        for invoice in admin.post("/api/v1/admin/billing/close", {"until": "now"})["invoices"]
    }
    tenant_rows, invoiced_tokens = [], 0
    for tenant in tenants:
        if tenant.id not in closed:
            raise CountMismatchError(f"{tenant.name} has tokens in the ledger but no invoice")
        invoice = tenant.control.get(f"/api/v1/invoices/{closed[tenant.id]['id']}")
        show_usage(console, tenant.name, ledger[tenant.id], names)
        show_invoice(console, tenant.name, invoice, names)
        invoiced_tokens += sum(int(line["quantity"]) for line in invoice["lines"] if line["kind"].endswith("_tokens"))
        tenant_rows.append(
            {
                "id": tenant.id,
                "adapters": [tenant.adapter],
                **{
                    key: sum(row[key] for row in ledger[tenant.id])
                    for key in ("input_tokens", "output_tokens", "kv_page_seconds")
                },
                "amount_nanos": invoice["amount_nanos"],
                "invoice_id": invoice["id"],
            }
        )
    audit = admin.get("/api/v1/admin/reconciliation")
    # Counts only records whose transfers and entries exist and agree. The usage above does not check that.
    posted = {row["tenant_id"]: row["ledger_tokens"] for row in audit["per_tenant"]}
    ledger_tokens = sum(posted.get(tenant.id, 0) for tenant in tenants)
    console.print(
        table(
            "Reconciliation",
            ["engine's own counters", "ledger", "invoices"],
            [[f"{engine_tokens:,}", f"{ledger_tokens:,}", f"{invoiced_tokens:,}"]],
        )
    )
    if not engine_tokens == ledger_tokens == invoiced_tokens or audit["ledger_drift_nanos"]:
        raise CountMismatchError(
            f"engine {engine_tokens}, ledger {ledger_tokens}, invoices {invoiced_tokens}; all time: {audit}"
        )
    return {
        "tokens": {"engine": engine_tokens, "ledger": ledger_tokens, "invoice": invoiced_tokens},
        "tenants": tenant_rows,
    }


def _reconcile(status: dict[str, Any], console: Console) -> int:
    """Print how many differences a full reconciliation found. Raises CountMismatchError unless there is none."""
    found = reconcile(status)
    if found.differences:
        raise CountMismatchError(f"a full reconciliation found {found.differences} differences:\n{found.output}")
    console.print("full reconciliation of engines, ledger, invoices and payments: 0 unexplained differences")
    return found.differences
