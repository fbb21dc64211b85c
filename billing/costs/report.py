"""Revenue, cost and margin by tenant, adapter, model or plan; break-even and savings by model.

Costs are the stored rows of hours that are shared out, and on request a preview of those that are not yet. The direct
cost is what an owner caused. The absorbed cost also spreads the platform's rows (idle, start, lost …) of a placement
group over its owners by their direct cost; the two are never mixed.

Cost and revenue are of the same hours: revenue and what outside providers charged end where costs of replicas do, and
the tokens of a break-even are those of the replicas and hours that have a cost.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Annotated, Literal

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.costs import due_hours, price_book
from billing.costs.allocation import CostOwner
from billing.costs.break_even import ChargedOutside, DatedOutsidePrice, Saving, break_even, saving
from billing.costs.due_hours import UnratedReplicas
from billing.costs.hours import HourCost, Preview, preview
from billing.costs.owned_costs import OwnedCost, absorbed_costs, charged_outside, costs_at_providers
from billing.costs.rates import MS_PER_HOUR
from billing.costs.revenue import Revenue, read_revenue
from billing.costs.settings import PREVIEW_HOURS_MAX, REPORT_DAYS_MAX, REPORT_ROWS_MAX, CostSettings
from billing.costs.step_model import ERROR_PPM_MAX, RATIO_PPM_MAX, RATIO_PPM_MIN
from core import clock, fields
from core.errors import InvalidRequest
from core.fields import about

CostGrouping = Literal["tenant", "adapter", "model", "plan"]
PPM = 1_000_000
_SUMMED = (
    "input_tokens", "cached_tokens", "output_tokens", "usage_nanos", "resource_nanos", "account_nanos", "revenue_nanos",
)  # fmt: skip

_ROWS = sa.text("""
SELECT h.base_model, h.rank_max, r.tenant_id, r.adapter_id, r.plan_id, r.kind, sum(r.nanos)::bigint AS nanos
FROM cost_rows r JOIN cost_hours h USING (replica_id, hour_ms)
WHERE r.hour_ms >= :start_ms AND r.hour_ms < :end_ms
GROUP BY h.base_model, h.rank_max, r.tenant_id, r.adapter_id, r.plan_id, r.kind
ORDER BY h.base_model, h.rank_max, r.tenant_id, r.adapter_id, r.plan_id, r.kind
""")
_HOURS = sa.text("""
SELECT h.base_model, h.rank_max, sum(h.total_nanos)::bigint AS total_nanos, sum(h.paid_ms)::bigint AS paid_ms,
       sum(h.busy_ms)::bigint AS busy_ms, max(h.hour_ms) AS last_hour_ms,
       count(*) FILTER (WHERE h.cost_function_id IS NULL)::bigint AS unfitted_hours,
       count(*) FILTER (
           WHERE h.ratio_ppm NOT BETWEEN :ratio_min AND :ratio_max OR f.ratio_ppm NOT BETWEEN :ratio_min AND :ratio_max
               OR f.median_error_ppm > :error_max
       )::bigint AS flagged_hours
FROM cost_hours h LEFT JOIN cost_functions f ON f.id = h.cost_function_id
WHERE h.hour_ms >= :start_ms AND h.hour_ms < :end_ms
GROUP BY h.base_model, h.rank_max ORDER BY h.base_model, h.rank_max
""")


# What the replicas computed in the hours that have a cost, by the hour in which each request began. Amendments change
# nothing here.
_TOKENS = sa.text("""
SELECT u.base_model, sum(u.input_tokens)::bigint AS input_tokens, sum(u.output_tokens)::bigint AS output_tokens
FROM usage_replica_hours u
WHERE u.hour >= :start AND u.hour < :end AND (
    EXISTS (
        SELECT FROM cost_hours h
        WHERE h.replica_id = u.replica_id AND h.hour_ms = extract(epoch FROM u.hour)::bigint * 1000
    )
    OR (u.replica_id, u.hour) IN (
        SELECT * FROM unnest(CAST(:replicas AS text[]), CAST(:hours AS timestamptz[]))
    )
)
GROUP BY u.base_model
""")


class GroupTime(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of a placement group cost, and for how long. ``unfitted_hours`` were shared out before a cost
    function was fitted, ``flagged_hours`` with one that is flagged, or that predicted less than 0.8 or more than 1.25
    of their time.
    """

    base_model: str
    rank_max: int
    total_nanos: int
    paid_ms: int
    busy_ms: int
    last_hour_ms: int
    unfitted_hours: int = 0
    flagged_hours: int = 0


class MarginRow(msgspec.Struct, frozen=True, kw_only=True):
    """Revenue beside cost of one tenant, adapter, model or plan; ``(account)`` is revenue of no adapter or model.
    ``revenue_nanos`` sums the three before it. The margins are None for usage of a base model whose cost is not known.
    """

    key: Annotated[str, about("Id of the tenant, adapter, model or plan; empty for the base model's own usage.")]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    usage_nanos: Annotated[int, about("Revenue of requests, in nanodollars.")]
    resource_nanos: Annotated[int, about("Revenue of storage, pins and cold loads, in nanodollars.")]
    account_nanos: Annotated[int, about("Revenue of the account in nanodollars: fees, tiers, discounts, credit notes.")]
    revenue_nanos: Annotated[int, fields.REVENUE_NANOS]
    cost_nanos: Annotated[int, fields.COST_NANOS]
    absorbed_cost_nanos: Annotated[
        int,
        about("Cost with its part of the platform's rows of its placement group, such as idle time, in nanodollars."),
    ]
    margin_nanos: Annotated[
        int | None, about("Revenue minus the cost that it caused, in nanodollars; null where a replica has no rate.")
    ]
    margin_ppm: Annotated[
        int | None,
        about("The margin in millionths of the revenue; null without revenue and where a replica has no rate."),
    ]


class ModelEconomics(msgspec.Struct, frozen=True, kw_only=True):
    """One base model: what a million of its tokens cost, observed and at full use, and beside an outside price.
    ``tokens`` are of the replicas and hours that have a cost.
    """

    base_model: str
    tokens: int
    total_nanos: int
    paid_ms: int
    busy_ms: int
    utilisation_ppm: int
    break_even_observed_nanos: int | None
    break_even_full_use_nanos: int | None
    saving: Saving
    unfitted_hours: int
    flagged_hours: int


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """All replicas of a period. ``total_nanos`` is the sum of the rows' cost and of the ``platform`` amounts by kind.
    ``allocated_until`` is the end of the last hour that is shared out for good. Revenue is counted up to
    ``revenue_until``, because later hours have no cost yet.
    """

    start: datetime
    end: datetime
    allocated_until: datetime | None
    revenue_until: datetime
    unrated: tuple[UnratedReplicas, ...]
    group_by: CostGrouping
    total_nanos: int
    revenue_nanos: int
    rows: tuple[MarginRow, ...]
    platform: dict[str, int]
    models: tuple[ModelEconomics, ...]


def report(
    session: Session,
    *,
    start: datetime,
    end: datetime,
    group_by: CostGrouping,
    settings: CostSettings,
    include_open_hours: bool = False,
) -> CostReport:
    """The report of the hours in ``[start, end)`` that are shared out. With ``include_open_hours``, the others are
    computed as they are now. Raises InvalidRequest for a period without whole hours or that is too long.
    """
    start_ms, end_ms = checked_hours(start, end)
    costs, groups = stored_costs(session, start_ms, end_ms)
    allocated_ms = max((group.last_hour_ms + MS_PER_HOUR for group in groups), default=None)
    opened = Preview([], due_hours.shared_until_ms(session, settings))
    if include_open_hours:
        opened = preview(session, settings, hours_max=PREVIEW_HOURS_MAX, start_ms=start_ms, end_ms=end_ms)
        _add_open_hours(opened.hours, costs, groups)
    until_ms = end_ms if opened.until_ms is None else min(end_ms, max(start_ms, opened.until_ms))
    charged = read_revenue(session, start=start, end=clock.from_ms(until_ms))
    at_providers = costs_at_providers(session, start=start, end=clock.from_ms(until_ms))
    costs += [cost for cost in at_providers if cost.nanos > 0]
    unrated = set(due_hours.unrated(session, before_ms=end_ms, after_ms=start_ms).values())
    models = sorted({group.base_model for group in groups})
    rated = {*models, *(cost.base_model for cost in at_providers)} - {each.base_model for each in unrated}
    rows = margins(costs, charged, group_by, rated)
    if len(rows) > REPORT_ROWS_MAX:
        raise InvalidRequest(
            f"group_by: the report would have more than {REPORT_ROWS_MAX} rows; ask for a shorter period or group by "
            "plan or model.",
            param="group_by",
        )
    platform = Counter[str]()
    for cost in costs:
        if not cost.owner.tenant_id:
            platform[cost.kind] += cost.nanos
    prices = price_book.list_outside_prices(session)
    tokens = _tokens(session, start, end, opened.hours)
    charged_for = charged_outside(session, at_providers)
    return CostReport(
        start=start,
        end=end,
        allocated_until=None if allocated_ms is None else clock.from_ms(allocated_ms),
        revenue_until=clock.from_ms(until_ms),
        unrated=tuple(sorted(unrated)),
        group_by=group_by,
        total_nanos=sum(cost.nanos for cost in costs),
        revenue_nanos=sum(each.revenue_nanos for each in charged),
        rows=tuple(rows),
        platform=dict(sorted(platform.items())),
        models=tuple(_economics(model, groups, tokens[model], prices, end, charged_for.get(model)) for model in models),
    )


def checked_hours(start: datetime, end: datetime) -> tuple[int, int]:
    """The period in Unix milliseconds. Raises InvalidRequest unless it consists of whole hours and is short enough."""
    start_ms, end_ms = clock.to_ms(start), clock.to_ms(end)
    for name, instant_ms in (("start", start_ms), ("end", end_ms)):
        if instant_ms % MS_PER_HOUR:
            raise InvalidRequest(f"{name}: costs are shared out by the hour; use a whole hour in UTC.", param=name)
    if start_ms >= end_ms:
        raise InvalidRequest("end: it is not after start; make it later.", param="end")
    if end_ms - start_ms > REPORT_DAYS_MAX * 24 * MS_PER_HOUR:
        raise InvalidRequest(f"start: a report covers at most {REPORT_DAYS_MAX} days; make it later.", param="start")
    return start_ms, end_ms


def stored_costs(session: Session, start_ms: int, end_ms: int) -> tuple[list[OwnedCost], list[GroupTime]]:
    """The costs of the hours that are shared out, by owner and kind, and the placement groups' time."""
    period = {"start_ms": start_ms, "end_ms": end_ms}
    costs = [
        OwnedCost(
            base_model=row["base_model"],
            rank_max=row["rank_max"],
            owner=CostOwner(tenant_id=row["tenant_id"], adapter_id=row["adapter_id"], plan_id=row["plan_id"]),
            kind=row["kind"],
            nanos=row["nanos"],
        )
        for row in session.connection().execute(_ROWS, period).mappings()
    ]
    bounds = {"ratio_min": RATIO_PPM_MIN, "ratio_max": RATIO_PPM_MAX, "error_max": ERROR_PPM_MAX}
    groups = [GroupTime(**row) for row in session.connection().execute(_HOURS, period | bounds).mappings()]
    return costs, groups


def _add_open_hours(opened: Iterable[HourCost], costs: list[OwnedCost], groups: list[GroupTime]) -> None:
    for hour in opened:
        base_model, rank_max = hour.kind.base_model, hour.kind.rank_max
        costs += [
            OwnedCost(base_model=base_model, rank_max=rank_max, owner=row.owner, kind=row.kind, nanos=row.nanos)
            for row in hour.allocation.rows
        ]
        groups.append(
            GroupTime(
                base_model=base_model,
                rank_max=rank_max,
                total_nanos=hour.allocation.total_nanos,
                paid_ms=hour.paid_ms,
                busy_ms=hour.busy_ms,
                last_hour_ms=hour.hour_ms,
                unfitted_hours=int(hour.function is None),
                flagged_hours=int(hour.is_flagged),
            )
        )


def _tokens(
    session: Session, start: datetime, end: datetime, opened: Sequence[HourCost]
) -> defaultdict[str, tuple[int, int]]:
    """The prompt and output tokens of the hours that are shared out, and of the ``opened`` ones, by base model."""
    parameters = {
        "start": start,
        "end": end,
        "replicas": [hour.replica_id for hour in opened],
        "hours": [clock.from_ms(hour.hour_ms) for hour in opened],
    }
    rows = session.connection().execute(_TOKENS, parameters).mappings()
    found = {row["base_model"]: (row["input_tokens"], row["output_tokens"]) for row in rows}
    return defaultdict(lambda: (0, 0), found)


def margins(
    costs: Sequence[OwnedCost], charged: Sequence[Revenue], group_by: CostGrouping, rated: AbstractSet[str]
) -> list[MarginRow]:
    """Revenue and cost by key, for every key that has either. Costs without a tenant are in no row, but spread over the
    rows of their placement group in the absorbed cost. ``rated`` are the base models of which every replica has a cost.
    """
    direct, absorbed = Counter[str](), Counter[str]()
    for cost in costs:
        if cost.owner.tenant_id:
            direct[_key(cost.owner, cost.base_model, group_by)] += cost.nanos
    for (owner, base_model), nanos in absorbed_costs(costs).items():
        absorbed[_key(owner, base_model, group_by)] += nanos
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    unknown: set[str] = set()
    for each in charged:
        key = _key(each.owner, each.base_model, group_by)
        for name in _SUMMED:
            sums[key][name] += getattr(each, name)
        if each.has_usage and each.base_model not in rated:
            unknown.add(key)
    return [
        _margin_row(key, sums[key], direct[key], absorbed[key], known=key not in unknown)
        for key in sorted(sums.keys() | direct.keys())
    ]


def _margin_row(key: str, sums: Counter[str], cost: int, absorbed: int, *, known: bool) -> MarginRow:
    revenue = sums["revenue_nanos"]
    return MarginRow(
        key=key,
        **{name: sums[name] for name in _SUMMED},
        cost_nanos=cost,
        absorbed_cost_nanos=absorbed,
        margin_nanos=revenue - cost if known else None,
        margin_ppm=(revenue - cost) * PPM // revenue if known and revenue > 0 else None,
    )


def _key(owner: CostOwner, base_model: str, group_by: CostGrouping) -> str:
    keys = {"tenant": owner.tenant_id, "adapter": owner.adapter_id, "plan": owner.plan_id, "model": base_model}
    return keys[group_by]


def _economics(
    model: str,
    groups: Iterable[GroupTime],
    tokens: tuple[int, int],
    prices: Sequence[DatedOutsidePrice],
    end: datetime,
    charged: ChargedOutside | None,
) -> ModelEconomics:
    mine = [group for group in groups if group.base_model == model]
    inputs, outputs = tokens
    total, paid_ms, busy_ms = (
        sum(getattr(group, name) for group in mine) for name in ("total_nanos", "paid_ms", "busy_ms")
    )
    found = break_even(total_nanos=total, tokens=inputs + outputs, busy_ms=busy_ms, paid_ms=paid_ms)
    return ModelEconomics(
        base_model=model,
        tokens=inputs + outputs,
        total_nanos=total,
        paid_ms=paid_ms,
        busy_ms=busy_ms,
        utilisation_ppm=busy_ms * PPM // paid_ms if paid_ms else 0,
        break_even_observed_nanos=found["observed"],
        break_even_full_use_nanos=found["full_use"],
        saving=saving(
            prices,
            model=model,
            on=end.date(),
            input_tokens=inputs,
            output_tokens=outputs,
            own_nanos=total,
            charged=charged,
        ),
        unfitted_hours=sum(group.unfitted_hours for group in mine),
        flagged_hours=sum(group.flagged_hours for group in mine),
    )
