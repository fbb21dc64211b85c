"""Costs as CSV in the FOCUS format (FinOps Open Cost and Usage Specification 1.3, focus.finops.org), one line per hour,
replica, owner and kind.

Every line is a share of the cost of one replica: FOCUS calls this split cost allocation, and ``AllocatedMethodId``
names the method. The lines of a replica's hour add up to its cost.
"""

import csv
import io
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session

from billing.costs.rates import MS_PER_HOUR
from core import clock
from core.money import NANOS_PER_DOLLAR

METHOD: Final = "tenora-step-time"
COLUMNS: Final = (
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency", "BillingPeriodStart",
    "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription",
    "ChargeFrequency", "ServiceCategory", "ServiceName", "ProviderName", "PublisherName", "InvoiceIssuerName",
    "BillingAccountId", "SubAccountId", "ResourceId", "ResourceType", "AllocatedMethodId", "AllocatedMethodDetails",
    "x_CostKind", "x_BaseModel", "x_RankClass", "x_PlanId", "x_AdapterId", "x_CostFunctionId", "x_ReplicaId",
)  # fmt: skip
_FETCH_ROWS: Final = 1_000
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")

_LINES = sa.text("""
SELECT r.replica_id, r.hour_ms, r.tenant_id, r.adapter_id, r.plan_id, r.kind, r.nanos, h.base_model, h.rank_max,
       coalesce(h.cost_function_id, '') AS cost_function_id
FROM cost_rows r JOIN cost_hours h USING (replica_id, hour_ms)
WHERE r.hour_ms >= :start_ms AND r.hour_ms < :end_ms
ORDER BY r.hour_ms, r.replica_id, r.tenant_id, r.adapter_id, r.plan_id, r.kind
""")
_DESCRIPTIONS: Final = {
    "requests": "Requests",
    "aborted_prefill": "Prompts aborted before their first token",
    "adapter_load": "Steps that waited for an adapter",
    "pinned": "Pinned adapter slots",
    "platform": "Health probes and canaries",
    "unclaimed": "Work without usage",
    "idle": "Unused capacity",
    "starting": "Start of a replica",
    "draining": "Drain of a replica",
    "lost": "Replica without reports",
}


def focus_csv(session: Session, *, start_ms: int, end_ms: int, issuer: str) -> Iterator[str]:
    """The CSV in pieces, the header first. ``issuer`` is the platform's name. Reads row by row, so that a month is not
    held in memory.
    """
    yield _line(COLUMNS)
    found = session.connection(execution_options={"yield_per": _FETCH_ROWS}).execute(
        _LINES, {"start_ms": start_ms, "end_ms": end_ms}
    )
    for row in found.mappings():
        begins, ends = clock.from_ms(row["hour_ms"]), clock.from_ms(row["hour_ms"] + MS_PER_HOUR)
        month = begins.replace(day=1, hour=0)
        next_month = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        cost = dollars(row["nanos"])
        yield _line(
            (
                cost, cost, cost, cost, "USD", _instant(month), _instant(next_month), _instant(begins), _instant(ends),
                "Usage", "", _DESCRIPTIONS[row["kind"]], "Usage-Based", "AI and Machine Learning", "Model inference",
                issuer, issuer, issuer, issuer, row["tenant_id"], row["replica_id"], "Inference replica", METHOD,
                "busy time by predicted step time; load stalls to their cause; unused capacity in lines of its own",
                row["kind"], row["base_model"], str(row["rank_max"]), row["plan_id"], row["adapter_id"],
                row["cost_function_id"], row["replica_id"],
            )
        )  # fmt: skip


def dollars(nanos: int) -> str:
    """Dollars with nine decimals, exact."""
    sign, whole = ("-" if nanos < 0 else ""), abs(nanos)
    return f"{sign}{whole // NANOS_PER_DOLLAR}.{whole % NANOS_PER_DOLLAR:09d}"


def spreadsheet_safe(text: str) -> str:
    """Text that a spreadsheet does not run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _instant(instant: object) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}"


def _line(cells: tuple[str, ...]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow([spreadsheet_safe(cell) for cell in cells])
    return out.getvalue()
