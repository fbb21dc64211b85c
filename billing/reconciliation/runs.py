"""Runs a reconciliation, stores its result, and lists results. Hourly it reads only what changed since the last run,
daily everything.

The differences of a run are all that stand: hours that differed before are read again, and what only a full run reads,
or what is written once, is carried over. So a run of what changed finds what a full one finds; only the full one also
adds up every record again. A run after one that found more differences than are stored reads everything.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
import structlog
from sqlmodel import Session, col, select

from billing import metrics
from billing.locks import serialize_decision
from billing.reconciliation import ledger_check, totals
from billing.reconciliation.differences import OF_ENGINES, Difference
from billing.reconciliation.engine_check import EngineCheck, changed_hours, check_engines
from billing.reconciliation.models import ReconciliationDifference, ReconciliationRun
from billing.reconciliation.stripe import check_stripe
from billing.reconciliation.views import ReconciliationDifferenceView, ReconciliationRunDetail, ReconciliationRunView
from billing.settings import BillingSettings
from core.db import database_now, newest_first, unit_of_work
from core.errors import NotFound
from core.ids import new_id

_OVERLAP: Final = timedelta(minutes=5)
"""A transaction that was open during the last run may have been stamped before it and committed after."""

_ALARMS_MAX: Final = 100
# A full run groups every record: without memory for it, Postgres sorts them on disk.
_SESSION: Final = ("statement_timeout = '10min'", "work_mem = '256MB'", "jit = off")
_READ_AGAIN: Final = (*OF_ENGINES, "stripe")

_log = structlog.get_logger()


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``settle``: how long after its last change an hour is judged. ``differences_max``: how many are stored."""

    settle: timedelta
    differences_max: int


def run_limits(settings: BillingSettings) -> RunLimits:
    """The limits as they are set."""
    return RunLimits(
        settle=timedelta(seconds=settings.billing_reconcile_settle_s),
        differences_max=settings.billing_reconcile_differences_max,
    )


def run(engine: sa.Engine, limits: RunLimits, *, full: bool = False) -> ReconciliationRunDetail:
    """Compare, store the result and set the alarm metrics. The first run is a full one, as is one after a run that did
    not store all that it found.
    """
    with unit_of_work(engine) as session:
        for setting in _SESSION:
            session.connection().exec_driver_sql(f"SET LOCAL {setting}")
        serialize_decision(session, "a reconciliation")  # two runs would both carry over the same differences
        stored = _run(session, limits, full=full)
    _alarm(stored)
    return stored


class ReconciliationSchedule:
    """The worker's look at whether a run is due, and whether it is a full one. Several workers may have one: the first
    does the run.
    """

    def __init__(
        self,
        engine: sa.Engine,
        limits: RunLimits,
        *,
        every: timedelta,
        full_every: timedelta,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._every = every
        self._full_every = full_every

    def run_once(self) -> None:
        """Run if the last run is older than the interval. The metrics describe the last run of any worker."""
        with unit_of_work(self._engine) as session:
            last, now = newest_run(session), database_now(session)
            full = session.exec(
                select(sa.func.max(ReconciliationRun.started_at)).where(ReconciliationRun.mode == "full")
            ).one()
        if last is not None and last.started_at > now - self._every:
            _alarm(last)
            return
        run(self._engine, self._limits, full=full is None or full <= now - self._full_every)
        with unit_of_work(self._engine) as session:
            metrics.LEDGER_DRIFT_NANOS.set(totals.ledger_drift_nanos(session))


def list_runs(session: Session, *, limit: int, after: str | None = None) -> list[ReconciliationRunView]:
    """Runs without their differences, the newest first, of those that are older than ``after``."""
    statement = newest_first(select(ReconciliationRun), col(ReconciliationRun.id), after=after, limit=limit)
    return [msgspec.convert(each, ReconciliationRunView, from_attributes=True) for each in session.exec(statement)]


def read_run(session: Session, run_id: str) -> ReconciliationRunDetail:
    """One run with its differences. Raises NotFound."""
    stored = session.get(ReconciliationRun, run_id)
    if stored is None:
        raise NotFound("Reconciliation not found.", code="reconciliation_not_found")
    rows = session.exec(
        select(ReconciliationDifference)
        .where(ReconciliationDifference.run_id == run_id)
        .order_by(col(ReconciliationDifference.position))
    ).all()
    return _detail(stored, rows)


def described(found: ReconciliationRunDetail) -> str:
    """The result in lines of text, for an operator."""
    counted = f"{found.hours} hours, {found.engine_tokens} tokens of engines, {found.ledger_tokens} in the ledger"
    explained = f"{found.explained_tokens} tokens, {found.explained_kv_page_ms} page-milliseconds"
    amounts = f"{found.unexplained_tokens} tokens, {found.unexplained_kv_page_ms} page-milliseconds"
    lines = [
        f"{found.mode}: {counted}",
        f"explained by request: {explained}",
        f"unexplained: {amounts}, {found.unexplained_nanos} nanodollars in {found.differing} differences",
    ]
    for each in found.differences:
        if each.unexplained != 0:
            hour = "" if each.hour is None else f" {each.hour.isoformat()}"
            where = "".join(f" {name}" for name in (each.tenant_id, each.base_model) if name is not None)
            lines.append(
                f"{each.kind} {each.subject}{where}{hour}: expected {each.expected}, found {each.found}, "
                f"explained {each.explained}, unexplained {each.unexplained} ({each.unit})"
            )
    return "\n".join(lines) + "\n"


def newest_run(session: Session) -> ReconciliationRunDetail | None:
    """The last run, None before the first."""
    newest = session.exec(select(sa.func.max(ReconciliationRun.id))).one()
    return None if newest is None else read_run(session, newest)


def _run(session: Session, limits: RunLimits, *, full: bool) -> ReconciliationRunDetail:
    now = database_now(session)
    last = newest_run(session)
    settled_before = now - limits.settle
    if full or last is None or len(last.differences) >= limits.differences_max:
        since = None
        checked = check_engines(session, None, settled_before=settled_before)
        others = [*ledger_check.check_all(session), *check_stripe(session)]
    else:
        # Hours that waited in the last run changed at most ``settle`` before it.
        since = last.started_at - limits.settle - _OVERLAP
        standing = [each for each in last.differences if each.kind not in _READ_AGAIN]
        differed = {each.hour for each in last.differences if each.kind in OF_ENGINES and each.hour is not None}
        hours = sorted(differed.union(changed_hours(session, since)))
        checked = check_engines(session, hours, settled_before=settled_before)
        kept = [msgspec.convert(each, Difference, from_attributes=True) for each in standing]
        others = [*kept, *ledger_check.check_new(session, since), *check_stripe(session)]
    found = {each.key: each for each in [*checked.differences, *others]}
    differences = [found[key] for key in sorted(found)]
    return _store(session, checked, differences, limits, started_at=now, since=since)


def _store(
    session: Session,
    checked: EngineCheck,
    differences: Sequence[Difference],
    limits: RunLimits,
    *,
    started_at: datetime,
    since: datetime | None,
) -> ReconciliationRunDetail:
    # Those that alarm come first where not all fit.
    alarming = sorted(differences, key=lambda each: each.unexplained == 0)
    kept = sorted(alarming[: limits.differences_max], key=lambda each: each.key)
    counted = [each for each in differences if each.kind != "cached_tokens"]  # they are prompt tokens, counted already
    totals = checked.totals
    rows = [
        ReconciliationDifference(run_id="", position=position, **_columns(each))
        for position, each in enumerate(kept, start=1)
    ]
    stored = ReconciliationRun(
        id=new_id("rcr"),
        mode="full" if since is None else "changed",
        started_at=started_at,
        finished_at=session.connection().execute(sa.text("SELECT clock_timestamp()")).scalar_one(),
        changed_since=since,
        hours=totals.hours,
        engine_tokens=totals.engine_tokens,
        ledger_tokens=totals.ledger_tokens,
        explained_tokens=sum(each.explained for each in counted if each.unit == "token"),
        unexplained_tokens=_unexplained(counted, "token"),
        engine_kv_page_ms=totals.engine_kv_page_ms,
        ledger_kv_page_ms=totals.ledger_kv_page_ms,
        explained_kv_page_ms=sum(each.explained for each in differences if each.unit == "page_millisecond"),
        unexplained_kv_page_ms=_unexplained(differences, "page_millisecond"),
        unexplained_nanos=_unexplained(differences, "nanodollar"),
        differing=sum(each.unexplained != 0 for each in differences),
    )
    session.add(stored)
    for row in rows:
        row.run_id = stored.id
    session.add_all(rows)
    session.flush()
    return _detail(stored, rows)


def _columns(each: Difference) -> dict[str, Any]:  # columns of several types
    return msgspec.structs.asdict(each) | {"unexplained": each.unexplained, "request_ids": list(each.request_ids)}


def _unexplained(differences: Sequence[Difference], unit: str) -> int:
    """The sum without signs: two errors do not cancel each other."""
    return sum(abs(each.unexplained) for each in differences if each.unit == unit)


def _detail(stored: ReconciliationRun, rows: Sequence[ReconciliationDifference]) -> ReconciliationRunDetail:
    view = msgspec.convert(stored, ReconciliationRunView, from_attributes=True)
    differences = msgspec.convert(rows, tuple[ReconciliationDifferenceView, ...], from_attributes=True)
    return ReconciliationRunDetail(**msgspec.structs.asdict(view), differences=differences)


def _alarm(stored: ReconciliationRunDetail) -> None:
    """Set the metrics of the last run, and log what alarms."""
    alarming = [each for each in stored.differences if each.unexplained != 0]
    metrics.RECONCILIATION_UNEXPLAINED.clear()
    for each in alarming[:_ALARMS_MAX]:
        hour = "" if each.hour is None else each.hour.isoformat()
        named = (each.kind, each.unit, each.replica_id or "", each.base_model or "", hour)
        metrics.RECONCILIATION_UNEXPLAINED.labels(*named).inc(abs(each.unexplained))
        _log.error(
            "reconciliation found an unexplained difference", kind=each.kind, subject=each.subject, unit=each.unit,
            expected=each.expected, found=each.found, explained=each.explained, unexplained=each.unexplained,
            replica_id=each.replica_id, tenant_id=each.tenant_id, base_model=each.base_model, hour=hour,
        )  # fmt: skip
    metrics.RECONCILIATION_DIFFERENCES.set(stored.differing)
    metrics.RECONCILED_AT.set(stored.finished_at.timestamp())
