"""The demo's tenants: one plan, two tenants with one API key each, and the adapter that each tenant fine-tunes."""

import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.ids import new_id
from tenora.demo.control import ControlPlane
from tenora.training.example_tasks import OUTDOOR_VOICE, TICKET_ROUTER, Task
from tenora.training.finetune import StepProgress, finetune, print_summary, progress_of_finetunes

_EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples"

LIMITS: Final = {
    "requests_per_minute": 2_000,
    "tokens_per_minute": 2_000_000,
    "concurrent_requests": 64,
    "kv_pages": 4_096,
    "tokens_per_month": 10_000_000,
    "context_tokens": 2_048,
    "output_tokens": 512,
    "adapters": 4,
    "adapter_rank": 16,
    "adapter_bytes": 64 * 1024 * 1024,
}
PRICES: Final = {
    "input_nanos": 50_000,
    "cached_input_nanos": 10_000,
    "output_nanos": 150_000,
    "kv_page_second_nanos": 20_000,
}


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """One tenant of the demo, its API key, and the adapter that it uploads."""

    id: str
    name: str
    key: str
    adapter: str
    task: Task
    control: ControlPlane


def create_tenants(admin: ControlPlane, control_url: str) -> tuple[Tenant, Tenant]:
    """Create a plan, two tenants on it, and an API key for each, as the admin.

    Names end in a random suffix, so that the demo can run repeatedly on the same state.
    """
    run = secrets.token_hex(3)
    plan = admin.post("/api/v1/admin/plans", {"name": f"demo-{run}", "limits": LIMITS, "prices": PRICES})
    created = []
    for name, adapter, task in (
        ("Alder Bank", "ticket-router", TICKET_ROUTER),
        ("Juniper Outdoor", "shop-voice", OUTDOOR_VOICE),
    ):
        tenant = admin.post("/api/v1/admin/tenants", {"name": f"{name} {run}", "plan": plan["name"]})
        key = admin.post(f"/api/v1/admin/tenants/{tenant['id']}/api-keys", {"name": "demo"})["key"]
        control = ControlPlane(control_url, key)
        created.append(Tenant(id=tenant["id"], name=name, key=key, adapter=adapter, task=task, control=control))
    return created[0], created[1]


def fine_tune(tenants: Sequence[Tenant], checkpoint: Path, folder: Path) -> list[Path]:
    """Train the tenants' adapters at the same time, each in a child process; returns the adapters' folders.

    One fine-tune computes while another loads torch, or waits for a core that another process uses. Raises
    RuntimeError when a training fails. A failure or an interruption ends the other trainings at their next step.
    """
    stopped = threading.Event()

    def until_stopped(show: StepProgress) -> StepProgress:
        def on_step(step: int, steps: int, loss: float) -> None:
            if stopped.is_set():
                raise RuntimeError("stopped, because another fine-tune failed or the demo was interrupted")
            show(step, steps, loss)

        return on_step

    folders = [folder / f"{tenant.adapter}-{new_id('up')}" for tenant in tenants]
    names = [tenant.task.name for tenant in tenants]
    with progress_of_finetunes(names) as callbacks, ThreadPoolExecutor(len(tenants)) as pool:
        running = [
            pool.submit(finetune, checkpoint, dataset(tenant), out, task=tenant.task, progress=until_stopped(callback))
            for tenant, out, callback in zip(tenants, folders, callbacks, strict=True)
        ]
        try:
            reports = [each.result() for each in as_completed(running)]
        except BaseException:
            stopped.set()
            raise
    for report in reports:
        print_summary(report)
    return folders


def dataset(tenant: Tenant) -> Path:
    """The folder of the tenant's examples in this repository."""
    return _EXAMPLES / tenant.task.name


def usage_by_adapter(tenant: Tenant, start: str, end: str) -> list[dict[str, Any]]:
    """The tenant's usage by adapter, read with the tenant's own key."""
    rows: list[dict[str, Any]] = tenant.control.get(
        "/api/v1/usage", start=start, end=end, bucket="1d", group_by="adapter"
    )["data"]
    return rows
