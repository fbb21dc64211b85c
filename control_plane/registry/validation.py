"""The worker's side of a revision: take one up under a lease, have it validated, and record the verdict once.

Validation itself runs outside any transaction. A worker that dies loses its lease and another takes the revision up; a
worker that only lost its lease finds its attempt outdated when it comes to record, and its verdict is dropped.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import DateTime, func
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import Session, col, select

from adapters.base_model import BaseModelSpec
from adapters.ingest import DeclaredFile
from adapters.validation import UploadLimits
from adapters.verdict import Verdict
from control_plane import metrics
from control_plane.audit import service as audit
from control_plane.publishing.service import publish_change
from control_plane.registry import adapters, announce, base_models, revisions
from control_plane.registry.models import Adapter, Revision
from control_plane.tenants import service as tenants

_ACTOR = "control_plane.worker"


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that validating one revision needs. ``attempt`` fences: only the newest may record or prolong."""

    revision_id: str
    tenant_id: str
    attempt: int
    files: tuple[DeclaredFile, ...]
    base: BaseModelSpec
    known_bases: frozenset[str]
    limits: UploadLimits


def claim(session: Session, *, lease_s: int, attempts_max: int) -> Job | None:
    """Take up the revision that has waited longest and that nobody holds; None when there is none.

    A revision that has already cost ``attempts_max`` workers is rejected instead.
    """
    waiting = (
        select(Revision)
        .where(Revision.status == "validating", _unleased(_now(session)))
        .order_by(col(Revision.id))
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = session.exec(waiting).first()
    if row is None:
        return None
    if row.attempts >= attempts_max:
        message = f"validation was cut short {row.attempts} times; upload it again, or ask the platform's operator"
        _decide(session, row, digest=None, problems=[_problem("validation_failed", message)], notes=[])
        return None
    row.attempts += 1
    row.leased_until = _now(session) + timedelta(seconds=lease_s)
    session.add(row)
    adapter = session.get_one(Adapter, row.adapter_id)
    tenant = tenants.get(session, row.tenant_id)
    return Job(
        revision_id=row.id,
        tenant_id=row.tenant_id,
        attempt=row.attempts,
        files=announce.declared(revisions.announced_files(session, row.id)),
        base=base_models.spec_of(session, adapter.base_model),
        known_bases=frozenset(base_models.known_names(session)),
        limits=announce.upload_limits(tenant.limits, tenant.plan),
    )


def prolong(session: Session, job: Job, *, lease_s: int) -> bool:
    """Hold the job for ``lease_s`` from now; False when it is no longer this worker's."""
    row = _held(session, job)
    if row is None:
        return False
    row.leased_until = _now(session) + timedelta(seconds=lease_s)
    session.add(row)
    return True


def hand_back(session: Session, job: Job, *, pause_s: int) -> None:
    """Return a job that could not even begin, such as with S3 down: tried again after a pause, without counting."""
    row = _held(session, job)
    if row is not None:
        row.attempts -= 1
        row.leased_until = _now(session) + timedelta(seconds=pause_s)
        session.add(row)


def record(session: Session, job: Job, verdict: Verdict) -> bool:
    """Make the verdict the revision's, and have it published; False when another worker has the job now."""
    row = _held(session, job)
    if row is None:
        return False
    digest = verdict.digest if verdict.accepted else None
    problems = msgspec.to_builtins(verdict.problems)
    _decide(session, row, digest=digest, problems=list(problems), notes=list(verdict.notes))
    return True


def reject_expired(session: Session, *, expires_s: int, limit: int) -> int:
    """Give up uploads that were announced ``expires_s`` ago and never completed; returns how many."""
    old = (
        select(Revision)
        .where(Revision.status == "uploading", col(Revision.created_at) < _now(session) - timedelta(seconds=expires_s))
        .order_by(col(Revision.id))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = session.exec(old).all()
    for row in rows:
        hours = expires_s / 3600
        message = f"the upload was not completed within {hours:g} hours; create a new revision"
        _decide(session, row, digest=None, problems=[_problem("upload_expired", message)], notes=[])
    return len(rows)


def _decide(
    session: Session, row: Revision, *, digest: str | None, problems: list[dict[str, Any]], notes: list[str]
) -> None:
    row.status = "ready" if digest else "rejected"
    row.digest = digest
    row.report = {"problems": problems, "notes": notes}
    row.decided_at = _now(session)
    row.leased_until = None
    session.add(row)
    session.flush()
    if digest:
        publish_change(session, "adapters", adapters.field_of(session.get_one(Adapter, row.adapter_id)))
    codes = [problem["code"] for problem in problems]
    metrics.VERDICTS.labels(row.status, codes[0] if codes else "").inc()
    audit.record(
        session,
        actor=_ACTOR,
        action="revision.accepted" if digest else "revision.rejected",
        target=row.id,
        tenant_id=row.tenant_id,
        details={"digest": digest, "codes": codes},
    )


def _problem(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "file": None, "where": None}


def _held(session: Session, job: Job) -> Revision | None:
    mine = select(Revision).where(
        Revision.id == job.revision_id, Revision.status == "validating", Revision.attempts == job.attempt
    )
    return session.exec(mine.with_for_update()).first()


def _unleased(now: datetime) -> ColumnElement[bool]:
    leased_until = col(Revision.leased_until)
    return leased_until.is_(None) | (leased_until < now)


def _now(session: Session) -> datetime:
    """The database's clock: workers' own clocks do not decide who holds a job."""
    return session.exec(select(func.clock_timestamp(type_=DateTime(timezone=True)))).one()
