"""The demo's tenants: one plan, two tenants with one API key each, and the task of each tenant's adapter."""

import secrets
from dataclasses import dataclass
from typing import Any, Final

from tenora.demo.control import ControlPlane
from tenora.training.example_tasks import OUTDOOR_VOICE, TICKET_ROUTER, Task

# Each tenant's name, the name of its adapter, and the task that the adapter is fine-tuned for.
TENANTS: Final = (
    ("Alder Bank", "ticket-router", TICKET_ROUTER),
    ("Juniper Outdoor", "shop-voice", OUTDOOR_VOICE),
)
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
    for name, adapter, task in TENANTS:
        tenant = admin.post("/api/v1/admin/tenants", {"name": f"{name} {run}", "plan": plan["name"]})
        key = admin.post(f"/api/v1/admin/tenants/{tenant['id']}/api-keys", {"name": "demo"})["key"]
        control = ControlPlane(control_url, key)
        created.append(Tenant(id=tenant["id"], name=name, key=key, adapter=adapter, task=task, control=control))
    return created[0], created[1]


def usage_by_adapter(tenant: Tenant, start: str, end: str) -> list[dict[str, Any]]:
    """The tenant's usage by adapter, read with the tenant's own key."""
    rows: list[dict[str, Any]] = tenant.control.get(
        "/api/v1/usage", start=start, end=end, bucket="1d", group_by="adapter"
    )["data"]
    return rows
