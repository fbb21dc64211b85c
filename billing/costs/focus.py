"""Costs as CSV in the FOCUS format (FinOps Open Cost and Usage Specification 1.3, dataset Cost and Usage), one line per
hour, replica, owner and kind.

Each hour of a replica is an origin charge, and its lines are the allocated charges of a split cost allocation: their
dimensions are those of the replica, and the ``Allocated…`` columns say whose part it is. Costs, quantities and ratios
of the lines add up to those of the hour. A line without an owner is the unallocated part.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import RowMapping
from sqlmodel import Session

from billing.costs.rates import MS_PER_HOUR
from core import clock
from core.csv_lines import csv_line, dollar_text
from core.periods import month_start

METHOD: Final = "tenora-step-time"
"""docs/COSTS.md describes it."""

COLUMNS: Final = (
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency", "BillingPeriodStart",
    "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription",
    "ChargeFrequency", "PricingQuantity", "PricingUnit", "ServiceCategory", "ServiceSubcategory", "ServiceName",
    "ServiceProviderName", "HostProviderName", "InvoiceIssuerName", "BillingAccountId", "BillingAccountName",
    "ResourceId", "ResourceName", "ResourceType", "AllocatedMethodId", "AllocatedMethodDetails", "AllocatedResourceId",
    "AllocatedResourceName", "AllocatedTags", "x_CostKind", "x_BaseModel", "x_RankClass", "x_Pool", "x_CostFunctionId",
)  # fmt: skip
_BILLIONTHS: Final = 1_000_000_000
_FETCH_ROWS: Final = 1_000

_LINES = sa.text("""
SELECT r.replica_id, r.hour_ms, r.tenant_id, r.adapter_id, r.plan_id, r.kind, r.nanos, h.base_model, h.rank_max, h.pool,
       h.total_nanos, h.paid_ms, coalesce(h.cost_function_id, '') AS cost_function_id
FROM cost_rows r JOIN cost_hours h USING (replica_id, hour_ms)
WHERE r.hour_ms >= :start_ms AND r.hour_ms < :end_ms
ORDER BY r.hour_ms, r.replica_id, r.tenant_id, r.adapter_id, r.plan_id, r.kind
""")


class LineShare(msgspec.Struct, frozen=True, kw_only=True):
    """A line's part of its hour, in billionths of the cost and of an hour."""

    ratio: int
    hours: int


class HourShares:
    """Gives each line what the running total of its hour has grown by, so that nothing is lost by rounding."""

    def __init__(self) -> None:
        self._hour: tuple[str, int] | None = None
        self._nanos = 0

    def add(self, hour: tuple[str, int], *, nanos: int, total_nanos: int, paid_ms: int) -> LineShare:
        """The share of the next line. The lines of an hour follow each other."""
        if hour != self._hour:
            self._hour, self._nanos = hour, 0
        before, self._nanos = self._nanos, self._nanos + nanos

        def grown(whole: int) -> int:
            return self._nanos * whole // total_nanos - before * whole // total_nanos

        return LineShare(ratio=grown(_BILLIONTHS), hours=grown(paid_ms * _BILLIONTHS // MS_PER_HOUR))


def focus_csv(session: Session, *, start_ms: int, end_ms: int, issuer: str, names: Mapping[str, str]) -> Iterator[str]:
    """The CSV in pieces, the header first. ``issuer`` is the platform's name, ``names`` are those of tenants and
    adapters by id. Reads row by row, so that a month is not held in memory.
    """
    yield csv_line(COLUMNS)
    found = session.connection(execution_options={"yield_per": _FETCH_ROWS}).execute(
        _LINES, {"start_ms": start_ms, "end_ms": end_ms}
    )
    shares = HourShares()
    for row in found.mappings():
        share = shares.add(
            (row["replica_id"], row["hour_ms"]),
            nanos=row["nanos"],
            total_nanos=row["total_nanos"],
            paid_ms=row["paid_ms"],
        )
        yield csv_line(_cells(row, share, issuer, names))


def _cells(row: RowMapping, share: LineShare, issuer: str, names: Mapping[str, str]) -> tuple[str, ...]:
    owner = row["adapter_id"] or row["tenant_id"]
    begins, ends = clock.from_ms(row["hour_ms"]), clock.from_ms(row["hour_ms"] + MS_PER_HOUR)
    month = month_start(begins)
    next_month = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    cost, hours = dollar_text(row["nanos"]), dollar_text(share.hours)
    element = f'"AllocatedRatio": {dollar_text(share.ratio)}, "UsageUnit": "Hours", "UsageQuantity": {hours}'
    details = f'{{"Elements": [{{{element}}}]}}'
    return (
        cost, cost, cost, cost, "USD", _instant(month), _instant(next_month), _instant(begins), _instant(ends),
        "Usage", "", "Time of an inference replica", "Usage-Based", hours, "Hours", "AI and Machine Learning",
        "Generative AI", "Model inference", issuer, issuer, issuer, issuer, "", row["replica_id"], row["replica_id"],
        "Inference replica", METHOD, details, owner, names.get(owner, ""), _tags(row), row["kind"],
        row["base_model"], str(row["rank_max"]), row["pool"], row["cost_function_id"],
    )  # fmt: skip


def _tags(row: RowMapping) -> str:
    tags: dict[str, Any] = {
        f"tenora/{name}": row[f"{name}_id"] for name in ("tenant", "adapter", "plan") if row[f"{name}_id"]
    }
    return json.dumps(tags, sort_keys=True) if tags else ""


def _instant(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"
