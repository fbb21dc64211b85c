"""Unit economics for admins. ``billing.costs`` computes; this room adds names, defaults and the wire format."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import Engine
from sqlmodel import Session

from billing.costs import cost_functions, focus, report
from billing.costs.cost_functions import FittedFunction
from billing.costs.report import CostGrouping, MarginRow
from billing.costs.settings import CostSettings
from billing.tax.profiles import read_seller
from control_plane.costs.schemas import (
    CostFunctionView,
    CostReportView,
    ModelEconomicsView,
    NamedMarginRow,
)
from control_plane.plans import service as plans
from control_plane.registry import base_models
from control_plane.registry.adapters import service as adapters
from control_plane.tenants import service as tenants
from core import clock
from core.db import unit_of_work
from core.periods import aware

_ISSUER = "Tenora"  # until the operator has set its own details


def list_functions(session: Session, *, limit: int) -> list[CostFunctionView]:
    """The newest cost functions."""
    return [_function(each) for each in cost_functions.list_functions(session, limit=limit)]


def read_report(
    session: Session,
    settings: CostSettings,
    *,
    start: datetime | None,
    end: datetime | None,
    group_by: CostGrouping,
    include_open_hours: bool,
) -> CostReportView:
    """The report of a period: the running UTC month up to the end of this hour, unless it is given."""
    start, end = period(start, end)
    found = report.report(
        session,
        start=start,
        end=end,
        group_by=group_by,
        settings=settings,
        include_open_hours=include_open_hours,
    )
    models = msgspec.convert(found.models, tuple[ModelEconomicsView, ...], from_attributes=True)
    fields = msgspec.structs.asdict(found) | {"rows": _named(session, found.rows, group_by), "models": models}
    return CostReportView(**fields)


def focus_lines(engine: Engine, *, start: datetime | None, end: datetime | None) -> Iterator[str]:
    """The FOCUS file of a period in pieces. Raises InvalidRequest for an impossible period, before the first piece."""
    start_ms, end_ms = report.checked_hours(*period(start, end))
    with unit_of_work(engine) as session:
        seller = read_seller(session)
        owners = [cost.owner for cost in report.stored_costs(session, start_ms, end_ms)[0]]
        names = tenants.names_of(session, {owner.tenant_id for owner in owners})
        adapter_names = adapters.owned_names(session, {owner.adapter_id for owner in owners})
    names |= {adapter_id: name for adapter_id, (_, name) in adapter_names.items()}
    issuer = _ISSUER if seller is None else seller.legal_name

    def pieces() -> Iterator[str]:
        with unit_of_work(engine) as session:
            yield from focus.focus_csv(session, start_ms=start_ms, end_ms=end_ms, issuer=issuer, names=names)

    return pieces()


def period(start: datetime | None, end: datetime | None) -> tuple[datetime, datetime]:
    """The given period; by default from the first of the UTC month to the end of the running hour. Raises
    InvalidRequest for an instant that no period can hold.
    """
    this_hour = clock.now().replace(minute=0, second=0, microsecond=0)
    end = this_hour + timedelta(hours=1) if end is None else aware(end, "end")
    return (end - timedelta(hours=1)).replace(day=1, hour=0) if start is None else aware(start, "start"), end


def _named(session: Session, rows: Sequence[MarginRow], group_by: CostGrouping) -> list[NamedMarginRow]:
    keys = {row.key for row in rows}
    owners: dict[str, tuple[str, str]] = {}
    names: dict[str, str] = {}
    match group_by:
        case "tenant":
            names = tenants.names_of(session, keys)
        case "plan":
            names = plans.names_of(session, keys)
        case "model":
            names = {key: key for key in keys.intersection(base_models.ids(session))}
        case "adapter":
            owners = adapters.owned_names(session, keys)
            names = {adapter_id: name for adapter_id, (_, name) in owners.items()}
    tenant_ids = {adapter_id: tenant_id for adapter_id, (tenant_id, _) in owners.items()}
    tenant_names = tenants.names_of(session, set(tenant_ids.values()))
    return [
        NamedMarginRow(
            **msgspec.structs.asdict(row),
            name=names.get(row.key),
            tenant_id=tenant_ids.get(row.key),
            tenant=tenant_names.get(tenant_ids.get(row.key, "")),
        )
        for row in rows
    ]


def _function(found: FittedFunction) -> CostFunctionView:
    return CostFunctionView(
        id=found.id,
        **msgspec.structs.asdict(found.kind),
        **msgspec.structs.asdict(found.weights),
        **msgspec.structs.asdict(found.quality),
        flags=list(found.quality.flags),
        measured_from=clock.from_ms(found.measured_from_ms),
        measured_until=clock.from_ms(found.measured_to_ms),
    )
