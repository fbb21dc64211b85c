"""The last step before a revision is ready: some replica has run it, beside its base. Which one to ask, and what the
answer means; carrying jobs and results is ``canary_exchange``.

A row says who has been asked, so a crash anywhere leaves it to be asked again. Fails closed: no answer, never ready. An
attempt counts against a revision when its replica died of it, or when nothing came of it although replicas were there
all the time; not while it waits or runs, and not when it was answered "later" or its pool was away.
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
from control_plane.registry.models import Adapter, AdapterRevocation, Revision
from control_plane.registry.review import decision, tenant_turns
from control_plane.settings import WorkerSettings
from core.contracts.canary import CanaryJob, CanaryResult
from core.contracts.replicas import ReplicaStatus
from core.db import database_now
from core.rank_classes import rank_above

AttemptState = Literal["open", "replica_died", "lost"]
"""What became of an attempt that was not answered in time: it waits or runs, took its replica with it, or is lost."""

_LATER: Final = "the last run gave no verdict, for reasons that say nothing of the adapter; it is run again"
_TEXT_MAX: Final = 2000
_OVERDUE_MAX: Final = 1000
_CURE: Final = "upload a corrected adapter as a new revision"


@dataclass(frozen=True, kw_only=True)
class ReplicaPool:
    """Ready replicas of one base model with one largest rank. It is asked for ranks in (``rank_above``, ``rank_max``],
    which no cheaper living pool serves.
    """

    base_model: str
    rank_above: int
    rank_max: int
    replicas: int


def pools_of(alive: Sequence[ReplicaStatus]) -> list[ReplicaPool]:
    """The pools that can be asked now, by base model and ascending rank. Pure."""
    ready = Counter((status.base_model, status.rank_max) for status in alive if status.state == "ready")
    classes: dict[str, list[int]] = {}
    for base_model, rank_max in ready:
        classes.setdefault(base_model, []).append(rank_max)
    return [
        ReplicaPool(
            base_model=base_model,
            rank_above=rank_above(rank_max, classes[base_model]),
            rank_max=rank_max,
            replicas=ready[base_model, rank_max],
        )
        for base_model, rank_max in sorted(ready)
    ]


def overdue(session: Session, settings: WorkerSettings) -> dict[str, int]:
    """Revisions that were asked for and not answered in time, with their attempt; the longest unanswered first."""
    asked = col(Revision.canary_asked_at)
    late = _waiting(Revision.id, Revision.canary_attempts).where(asked < _timed_out(session, settings))
    return {found.id: found.canary_attempts for found in session.exec(late.order_by(asked).limit(_OVERDUE_MAX))}


def extend(session: Session, attempts: Mapping[str, int]) -> None:
    """Wait on for these attempts, by revision."""
    rows = _waiting(Revision).where(col(Revision.id).in_(attempts)).with_for_update(of=Revision, skip_locked=True)
    for row in session.exec(rows).all():
        if row.canary_attempts == attempts[row.id]:
            row.canary_asked_at = database_now(session)
            session.add(row)


def request_runs(
    session: Session, pool: ReplicaPool, states: Mapping[tuple[str, int], AttemptState], settings: WorkerSettings
) -> list[CanaryJob]:
    """Choose whose turn it is at this pool, as many as it can take now, and note that each is asked. ``states`` are of
    overdue attempts, by revision and number; one that is not in it is left alone. A revision of which
    ``canary_attempts_max`` attempts count is rejected.
    """
    timed_out = _timed_out(session, settings)
    asked = col(Revision.canary_asked_at)
    mine = _fits(pool)
    outstanding = session.exec(_waiting(func.count()).where(mine, asked >= timed_out)).one()
    free = min(pool.replicas * settings.canary_jobs_per_replica - outstanding, settings.canary_batch_max)
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
            continue  # somebody else has just asked, or decided
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
    """Whether the row's last attempt does. A row on which something was noted since then was answered "later", or its
    pool was away.
    """
    return row.canary is None or states.get((row.id, row.canary_attempts)) == "replica_died"


def _reject_unanswered(session: Session, row: Revision) -> None:
    message = f"{row.canary_attempts} runs on a replica were not answered; upload it again, or ask the operator"
    metrics.CANARIES.labels("canary_failed").inc()
    decision.reject(session, row, [decision.problem("canary_failed", message)])


def mark_waiting(session: Session, pools: Sequence[ReplicaPool], settings: WorkerSettings) -> int:
    """Note on revisions that no living pool can run that they wait."""
    largest = {pool.base_model: pool.rank_max for pool in pools}  # pools ascend by rank
    servable = or_(
        false(), *((col(Adapter.base_model) == base) & (col(Revision.rank) <= rank) for base, rank in largest.items())
    )
    noted = col(Revision.canary)["waiting"].as_string().is_not(None)
    rows = _waiting(Revision).where(~servable, ~func.coalesce(noted, false())).limit(settings.canary_batch_max)
    found = session.exec(rows.with_for_update(of=Revision, skip_locked=True)).all()
    for row in found:
        row.canary = {
            "waiting": f"no replica that serves rank {row.rank} of this base model is ready; the revision is run, and "
            "becomes ready, when one is"
        }
        session.add(row)
    return len(found)


def decide(session: Session, result: CanaryResult) -> bool:
    """Make a run's outcome the revision's; False for one that came too late, or of an adapter that is revoked. Without
    a verdict the revision is asked for again when the time of its attempt is up.

    A failure counts only from the newest attempt, since a later one may do better. That it ran well is true whenever
    it was found: a revision never changes.
    """
    asked = col(Revision.canary_attempts)
    locked = select(Revision).where(
        Revision.id == result.revision_id,
        Revision.status == "validating",
        asked >= result.attempt if result.code is None else asked == result.attempt,
        col(Revision.checked_digest).is_not(None),
        col(Revision.canary_asked_at).is_not(None),
    )
    row = session.exec(locked.with_for_update()).first()
    if row is not None and result.code == "canary_later":
        row.canary = {"waiting": _LATER}
        session.add(row)
        return False
    if row is None or session.exec(_revoked(row.adapter_id)).first():
        return False
    assert row.canary_asked_at is not None, "the query asks for it"
    seconds = (database_now(session) - row.canary_asked_at).total_seconds()
    metrics.CANARY_SECONDS.observe(seconds)
    metrics.CANARIES.labels(result.code or "").inc()
    row.canary = _report(result)
    if result.code is None:
        decision.accept(session, row)
    else:
        said = _text(result.message).rstrip(".") or "the run on a replica failed"
        decision.reject(session, row, [decision.problem(result.code, f"{said}; {_CURE}")])
    return True


def _timed_out(session: Session, settings: WorkerSettings) -> datetime:
    return database_now(session) - timedelta(seconds=settings.canary_timeout_s)


def _waiting(*columns: Any) -> Any:
    """A select over checked revisions that no replica's run has decided, of adapters that are not revoked."""
    return (
        select(*columns)
        .select_from(Revision)
        .join(Adapter, col(Adapter.id) == col(Revision.adapter_id))
        .where(Revision.status == "validating", col(Revision.checked_digest).is_not(None))
        .where(~_revoked(col(Revision.adapter_id)).exists())
    )


def _revoked(adapter_id: Any) -> Any:
    return select(AdapterRevocation.id).where(
        AdapterRevocation.adapter_id == adapter_id, col(AdapterRevocation.lifted_at).is_(None)
    )


def _fits(pool: ReplicaPool) -> ColumnElement[bool]:
    rank = col(Revision.rank)
    return (col(Adapter.base_model) == pool.base_model) & (rank > pool.rank_above) & (rank <= pool.rank_max)


def _job(row: Revision, pool: ReplicaPool) -> CanaryJob:
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
    """What a model wrote, as Postgres can keep it: bounded, and without the NUL that JSONB refuses."""
    return text[:_TEXT_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")
