"""The fitted cost functions: fits them to the stored windows, stores each as an immutable version, and finds the one in
force.
"""

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.costs.models import CostFunctionRow, ReplicaCostWindow
from billing.costs.step_model import FitQuality, Observation, StepWeights, StepWork, fit
from core.db import database_now
from core.ids import new_id


class ReplicaKind(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What a cost function holds for: replicas of one base model and rank class, on one engine and device."""

    base_model: str
    rank_max: int
    engine: str
    device: str


class FittedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A stored cost function."""

    id: str
    kind: ReplicaKind
    weights: StepWeights
    quality: FitQuality
    measured_from_ms: int
    measured_to_ms: int


def kinds(session: Session) -> list[ReplicaKind]:
    """The kinds of replicas that have reported steps."""
    columns = [col(getattr(ReplicaCostWindow, name)) for name in ReplicaKind.__struct_fields__]
    found = sa.select(*columns).where(col(ReplicaCostWindow.steps) > 0).distinct()
    return sorted(ReplicaKind(**row) for row in session.connection().execute(found).mappings())


def fit_kind(session: Session, kind: ReplicaKind, *, windows_max: int) -> FittedFunction:
    """Fit the newest windows of one kind of replica and store the result. Raises Unprocessable for too few."""
    newest = (
        select(ReplicaCostWindow)
        .where(
            *(col(getattr(ReplicaCostWindow, name)) == getattr(kind, name) for name in ReplicaKind.__struct_fields__),
            col(ReplicaCostWindow.steps) > 0,
            col(ReplicaCostWindow.state) != "starting",
        )
        .order_by(col(ReplicaCostWindow.start_ms).desc(), col(ReplicaCostWindow.replica_id))
        .limit(windows_max)
    )
    windows = list(reversed(session.exec(newest).all()))
    weights, quality = fit([_observation_of(window) for window in windows])
    row = CostFunctionRow(
        id=new_id("cf"),
        **msgspec.structs.asdict(kind),
        **msgspec.structs.asdict(weights),
        **msgspec.structs.asdict(quality),
        measured_from_ms=min(window.start_ms for window in windows),
        measured_to_ms=max(window.end_ms for window in windows),
        created_at=database_now(session),
    )
    session.add(row)
    session.flush()
    return _view(row)


def in_force(session: Session, kind: ReplicaKind) -> FittedFunction | None:
    """The newest cost function of a kind of replica; None before the first fit."""
    newest = (
        select(CostFunctionRow)
        .where(*(col(getattr(CostFunctionRow, name)) == getattr(kind, name) for name in ReplicaKind.__struct_fields__))
        .order_by(col(CostFunctionRow.created_at).desc(), col(CostFunctionRow.id).desc())
        .limit(1)
    )
    row = session.exec(newest).first()
    return None if row is None else _view(row)


def list_functions(session: Session, *, limit: int) -> list[FittedFunction]:
    """Cost functions, newest first."""
    newest = select(CostFunctionRow).order_by(col(CostFunctionRow.id).desc()).limit(limit)
    return [_view(row) for row in session.exec(newest).all()]


def _observation_of(window: ReplicaCostWindow) -> Observation:
    work = msgspec.convert(window, StepWork, from_attributes=True)
    return Observation(work=work, busy_ms=window.busy_ms, stall_ms=min(window.stall_ms, window.busy_ms))


def _view(row: CostFunctionRow) -> FittedFunction:
    return FittedFunction(
        id=row.id,
        kind=msgspec.convert(row, ReplicaKind, from_attributes=True),
        weights=msgspec.convert(row, StepWeights, from_attributes=True),
        quality=msgspec.convert(row, FitQuality, from_attributes=True),
        measured_from_ms=row.measured_from_ms,
        measured_to_ms=row.measured_to_ms,
    )
