"""The last step before a revision is ready: a replica runs it and compares it with its base model. This module decides
which pool to ask and what a result means; ``canary_worker`` carries jobs and results.

The row records who was asked, so after a crash the revision is asked for again. Fails closed: without a result a
revision never becomes ready. An attempt counts against a revision when its replica died during the run, or when it
stayed unanswered although replicas were ready all the time. It does not count while it waits or runs, when the result
was "later", or when its pool was away.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import false, func, or_
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import Session, col, select

from control_plane import metrics
from control_plane.registry.adapters import pins
from control_plane.registry.models import Adapter, Revision
from control_plane.registry.review import decision, tenant_turns
from control_plane.settings import WorkerSettings
from core.contracts.canary import CanaryJob, CanaryResult
from core.contracts.replicas import ReplicaStatus
from core.db import database_now
from core.rank_classes import rank_above

AttemptState = Literal["open", "replica_died", "lost"]
"""The state of an attempt that was not answered in time: open (waiting or running), its replica died, or lost."""

_LATER: Final = "the last run gave no verdict for a reason unrelated to the adapter; it will be repeated"
_TEXT_MAX: Final = 2000
_OVERDUE_MAX: Final = 1000
BATCH_MAX: Final = 50
"""Canary results, and revisions that wait for a canary run, that one round handles."""
_FIX: Final = "upload a corrected adapter as a new revision"


@dataclass(frozen=True, kw_only=True)
class CanaryPool:
    """The ready replicas of one base model with one largest rank. The pool runs revisions with a rank in
    (``rank_above``, ``rank_max``], which no smaller live pool serves.
    """

    base_model: str
    rank_above: int
    rank_max: int
    replicas: int


def pools_of(alive: Sequence[ReplicaStatus]) -> list[CanaryPool]:
    """The pools that can be asked now, by base model and ascending rank. Pure."""
    ready = Counter((status.base_model, status.rank_max) for status in alive if status.state == "ready")
    classes: dict[str, list[int]] = {}
    for base_model, rank_max in ready:
        classes.setdefault(base_model, []).append(rank_max)
    return [
        CanaryPool(
            base_model=base_model,
            rank_above=rank_above(rank_max, classes[base_model]),
            rank_max=rank_max,
            replicas=ready[base_model, rank_max],
        )
        for base_model, rank_max in sorted(ready)
    ]


def any_waits(session: Session) -> bool:
    """Whether a revision waits for its canary run or for the result."""
    return session.exec(_waiting(Revision.id).limit(1)).first() is not None


def overdue(session: Session, settings: WorkerSettings) -> dict[str, int]:
    """Revisions whose canary run was not answered in time, with the number of the attempt; the oldest first."""
    asked = col(Revision.canary_asked_at)
    late = _waiting(Revision.id, Revision.canary_attempts).where(asked < _timed_out(session, settings))
    return {found.id: found.canary_attempts for found in session.exec(late.order_by(asked).limit(_OVERDUE_MAX))}


def extend(session: Session, attempts: Mapping[str, int]) -> None:
    """Restart the timeout of these attempts, which are still open, by revision."""
    rows = _waiting(Revision).where(col(Revision.id).in_(attempts)).with_for_update(of=Revision, skip_locked=True)
    for row in session.exec(rows).all():
        if row.canary_attempts == attempts[row.id]:
            row.canary_asked_at = database_now(session)
            session.add(row)


def request_runs(
    session: Session, pool: CanaryPool, states: Mapping[tuple[str, int], AttemptState], settings: WorkerSettings
) -> list[CanaryJob]:
    """Choose the next revisions for this pool, as many as it can take, and record that each was asked. ``states`` has
    the overdue attempts, by revision and attempt; an overdue attempt that is missing there is skipped. A revision is
    rejected once ``canary_attempts_max`` of its attempts count.
    """
    timed_out = _timed_out(session, settings)
    asked = col(Revision.canary_asked_at)
    mine = _fits(pool)
    outstanding = session.exec(_waiting(func.count()).where(mine, asked >= timed_out)).one()
    free = min(pool.replicas * settings.canary_jobs_per_replica - outstanding, BATCH_MAX)
    if free <= 0:
        return []
    order = tenant_turns.turns(session)
    lost = [revision_id for (revision_id, _), state in states.items() if state != "open"]
    due = _waiting(Revision.id).join(order, order.c.id == col(Revision.id))
    due = due.where(mine, asked.is_(None) | ((asked < timed_out) & col(Revision.id).in_(lost)))
    jobs = []
    for revision_id in session.exec(due.order_by(order.c.turn, col(Revision.id)).limit(free)).all():
        locked = select(Revision).where(Revision.id == revision_id, Revision.status == "validating")
        row = session.exec(locked.with_for_update(skip_locked=True)).first()
        if row is None or (row.canary_asked_at is not None and row.canary_asked_at >= timed_out):
            continue  # another worker has asked or decided
        if row.canary_asked_at is None or _counts(row, states):
            if row.canary_attempts >= settings.canary_attempts_max:
                _reject_unanswered(session, row)
                continue
            row.canary_attempts += 1
        row.canary_asked_at, row.canary = database_now(session), None
        session.add(row)
        jobs.append(_job(row, pool))
    return jobs


def _counts(row: Revision, states: Mapping[tuple[str, int], AttemptState]) -> bool:
    """Whether the row's last attempt counts. A row with a note since then had the result "later", or its pool was
    away.
    """
    return row.canary is None or states.get((row.id, row.canary_attempts)) == "replica_died"


def _reject_unanswered(session: Session, row: Revision) -> None:
    message = f"{row.canary_attempts} canary runs were not answered; upload the adapter again, or contact the operator"
    metrics.CANARIES.labels("canary_failed").inc()
    decision.reject(session, row, [decision.problem("canary_failed", message)])


def mark_waiting(session: Session, pools: Sequence[CanaryPool]) -> int:
    """Add a note to revisions that no live pool can run. Returns their number."""
    largest = {pool.base_model: pool.rank_max for pool in pools}  # pools ascend by rank
    servable = or_(
        false(), *((col(Adapter.base_model) == base) & (col(Revision.rank) <= rank) for base, rank in largest.items())
    )
    noted = col(Revision.canary)["waiting"].as_string().is_not(None)
    rows = _waiting(Revision).where(~servable, ~func.coalesce(noted, false())).limit(BATCH_MAX)
    found = session.exec(rows.with_for_update(of=Revision, skip_locked=True)).all()
    for row in found:
        row.canary = {
            "waiting": f"no replica that serves rank {row.rank} of this base model is ready; the canary run starts "
            "when one is"
        }
        session.add(row)
    return len(found)


def decide(session: Session, result: CanaryResult) -> bool:
    """Apply the result of a canary run. Returns False for a late result, for a revoked adapter and for a result without
    a verdict, after which the revision is asked for again when its attempt times out.

    A failure counts only from the newest attempt, because a later one may succeed. A success counts from any attempt,
    because a revision never changes.
    """
    decision.lock_adapter(session, result.revision_id)
    attempts = col(Revision.canary_attempts)
    locked = select(Revision).where(
        Revision.id == result.revision_id,
        Revision.status == "validating",
        attempts >= result.attempt if result.code is None else attempts == result.attempt,
        col(Revision.checked_digest).is_not(None),
        col(Revision.canary_asked_at).is_not(None),
    )
    row = session.exec(locked.with_for_update()).first()
    if row is not None and result.code == "canary_later":
        row.canary = {"waiting": _LATER}
        session.add(row)
        return False
    if row is None or session.exec(pins.unlifted(row.adapter_id)).first():
        return False
    assert row.canary_asked_at is not None, "the query requires it"
    seconds = (database_now(session) - row.canary_asked_at).total_seconds()
    metrics.CANARY_SECONDS.observe(seconds)
    metrics.CANARIES.labels(result.code or "").inc()
    row.canary = _report(result)
    if result.code is None:
        decision.accept(session, row)
    else:
        message = _text(result.message).rstrip(".") or "the run on a replica failed"
        decision.reject(session, row, [decision.problem(result.code, f"{message}; {_FIX}")])
    return True


def _timed_out(session: Session, settings: WorkerSettings) -> datetime:
    return database_now(session) - timedelta(seconds=settings.canary_timeout_s)


def _waiting(*columns: Any) -> Any:
    """A select over validated revisions without a canary verdict, of adapters that are not revoked."""
    return (
        select(*columns)
        .select_from(Revision)
        .join(Adapter, col(Adapter.id) == col(Revision.adapter_id))
        .where(Revision.status == "validating", col(Revision.checked_digest).is_not(None))
        .where(~pins.unlifted(col(Revision.adapter_id)).exists())
    )


def _fits(pool: CanaryPool) -> ColumnElement[bool]:
    rank = col(Revision.rank)
    return (col(Adapter.base_model) == pool.base_model) & (rank > pool.rank_above) & (rank <= pool.rank_max)


def _job(row: Revision, pool: CanaryPool) -> CanaryJob:
    return CanaryJob(
        revision_id=row.id,
        base_model=pool.base_model,
        engine_name=f"{row.adapter_id}@{row.checked_digest}",
        rank_class=pool.rank_max,
        attempt=row.canary_attempts,
    )


def _report(result: CanaryResult) -> dict[str, Any]:
    difference = result.logprob_difference
    return {
        "prompt": _text(result.prompt),
        "base_answer": _text(result.base_answer),
        "adapter_answer": _text(result.adapter_answer),
        "logprob_difference": difference,
        "load_ms": result.load_ms,
        "replica": _text(result.replica_id),
    }


def _text(text: str) -> str:
    """A model's text for Postgres: truncated, and without NUL, which JSONB refuses."""
    return text[:_TEXT_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")
