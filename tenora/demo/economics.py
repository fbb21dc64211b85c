"""What the demo's requests earned and what serving them cost."""

from typing import Any, Final

from rich.console import Console

from core.money import format_usd
from tenora.demo.control import ControlPlane
from tenora.demo.report import table
from tenora.stack.base_model import MODEL_ID

_NANOS_PER_HOUR: Final = 90_000_000  # nine cents for two virtual cores
_START: Final = "2026-01-01T00:00:00Z"


def add_rates(admin: ControlPlane) -> None:
    """Give every placement group without a rate one, so that the cost of its hours can be shared out."""
    rates = admin.get("/api/v1/admin/costs/rates")["data"]
    priced = {(rate["base_model"], rate["rank_max"]) for rate in rates if not rate["pool"]}
    groups = {(each["base_model"], each["rank_max"]) for each in admin.get("/api/v1/admin/replicas")["data"]}
    for base_model, rank_max in sorted(groups - priced):
        rate = {"base_model": base_model, "rank_max": rank_max, "effective_from": _START}
        admin.post("/api/v1/admin/costs/rates", rate | {"nanos_per_hour": _NANOS_PER_HOUR})


def show_economics(admin: ControlPlane, names: dict[str, str], console: Console) -> dict[str, Any]:
    """Print margin by tenant and the break-even price of a million tokens."""
    report = admin.get("/api/v1/admin/costs", group_by="tenant", include_open_hours="true")
    console.print(
        table(
            "Revenue and cost of replicas so far, by tenant",
            ["tenant", "revenue", "cost", "margin"],
            [
                [
                    names.get(row["key"], row["key"]),
                    format_usd(row["revenue_nanos"]),
                    format_usd(row["cost_nanos"]),
                    "-" if row["margin_ppm"] is None else f"{row['margin_ppm'] / 10_000:.1f} %",
                ]
                for row in report["rows"]
                if row["key"] in names
            ],
        )
    )
    (model,) = [each for each in report["models"] if each["base_model"] == MODEL_ID]
    observed, full = model["break_even_observed_nanos"], model["break_even_full_use_nanos"]
    console.print(
        f"break-even: {format_usd(observed)} a million tokens at the use so far, {format_usd(full)} at full use"
    )
    return {"break_even_observed_nanos": observed, "break_even_full_use_nanos": full}
