"""Validation jobs: claim a revision under a lease, renew it, and record the verdict once. ``canary_jobs`` has an
accepted revision run by a replica.

Validation itself runs outside any transaction. When a worker dies, its lease expires and another worker claims the
revision. A worker that only lost its lease finds its attempt outdated when it records, and its verdict is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import Session, col, select

from adapters.base_model_spec import BaseModelSpec
from adapters.manifest import StoredFile
from adapters.report import ValidationReport
from adapters.validation.bounds import UploadLimits
from control_plane.registry import base_model_names, base_models
from control_plane.registry.models import Adapter, Revision
from control_plane.registry.review import decision, tenant_turns
from control_plane.registry.revisions import service as revisions
from control_plane.registry.revisions import upload_rules
from control_plane.tenants import service as tenants
from core import leases
from core.db import database_now
from core.rank_classes import class_for


@dataclass(frozen=True, kw_only=True)
class ValidationJob:
    """The input of one validation. ``attempt`` is a fencing token: only the newest attempt may renew or record."""

    revision_id: str
    tenant_id: str
    attempt: int
    files: Sequence[StoredFile]
    base: BaseModelSpec
    known_bases: dict[str, str]
    limits: UploadLimits


def claim(session: Session, *, lease_s: int, attempts_max: int) -> ValidationJob | None:
    """Claim the oldest unleased revision of the tenant whose turn it is. Returns None without one.

    A revision whose validation was already cut short ``attempts_max`` times is rejected instead.
    """
    claimable = _unchecked(), _due(database_now(session))
    if session.exec(select(Revision.id).where(*claimable).limit(1)).first() is None:
        return None  # the usual case, without the turns of all tenants
    order = tenant_turns.turns(session)
    waiting = select(Revision).join(order, order.c.id == col(Revision.id)).where(*claimable)
    row = next(iter(leases.lock_due(session, waiting.order_by(order.c.turn, col(Revision.id)))), None)
    if row is None:
        return None
    if row.attempts >= attempts_max:
        message = f"validation was cut short {row.attempts} times; upload the adapter again, or contact the operator"
        decision.reject(session, row, [decision.problem("validation_failed", message)])
        return None
    leases.lease(row, database_now(session), lease_s)
    adapter = session.get_one(Adapter, row.adapter_id)
    tenant = tenants.get(session, row.tenant_id)
    return ValidationJob(
        revision_id=row.id,
        tenant_id=row.tenant_id,
        attempt=row.attempts,
        files=revisions.announced_files(session, row.id),
        base=base_models.spec_of(session, adapter.base_model),
        known_bases=base_model_names.owners(session),
        limits=upload_rules.upload_limits(tenant.limits, tenant.plan),
    )


def renew_lease(session: Session, job: ValidationJob, *, lease_s: int) -> bool:
    """Extend the lease to ``lease_s`` from now. Returns False when another worker has the job."""
    row = _held(session, job)
    if row is not None:
        leases.extend(row, database_now(session), lease_s)
    return row is not None


def release(session: Session, job: ValidationJob, *, pause_s: int, counted: bool) -> None:
    """Release a job that cannot continue now; it is tried again after a pause. With ``counted`` False, for example
    during an outage of S3, the attempt does not count.
    """
    row = _held(session, job)
    if row is not None:
        row.attempts -= 0 if counted else 1
        leases.extend(row, database_now(session), pause_s)


def record(session: Session, job: ValidationJob, verdict: ValidationReport, *, canary_required: bool) -> bool:
    """Apply the verdict: reject the revision, or make it ready, or queue its canary run where one is required. Returns
    False when another worker has the job or the adapter was deleted. The caller holds the lock of an accepted digest.
    """
    decision.lock_adapter(session, job.revision_id)
    row = _held(session, job)
    if row is None:
        return False
    row.report = {"problems": [], "notes": list(verdict.notes)}
    if not verdict.accepted:
        decision.reject(session, row, list(msgspec.to_builtins(verdict.problems)))
        return True
    assert verdict.manifest is not None, "an accepted verdict has a manifest"
    # The classes may have changed since the job was claimed.
    classes = base_models.spec_of(session, session.get_one(Adapter, row.adapter_id).base_model).classes
    row.checked_digest = verdict.digest
    row.stored_bytes = verdict.manifest.size_bytes
    row.rank, row.rank_class = verdict.manifest.rank, class_for(verdict.manifest.rank, classes)
    row.next_attempt_at = None
    session.add(row)
    if not canary_required:
        decision.accept(session, row)
    return True


def reject_expired(session: Session, *, expires_s: int, limit: int) -> int:
    """Reject uploads that were announced ``expires_s`` ago and never completed. Returns their number."""
    old = (
        select(Revision)
        .where(
            Revision.status == "uploading",
            col(Revision.created_at) < database_now(session) - timedelta(seconds=expires_s),
        )
        .order_by(col(Revision.id))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = session.exec(old).all()
    for row in rows:
        hours = expires_s / 3600
        message = f"the upload was not completed within {hours:g} hours; create a new revision"
        decision.reject(session, row, [decision.problem("upload_expired", message)])
    return len(rows)


def _held(session: Session, job: ValidationJob) -> Revision | None:
    return leases.held(session, select(Revision).where(Revision.id == job.revision_id, _unchecked()), job.attempt)


def _unchecked() -> ColumnElement[bool]:
    return (col(Revision.status) == "validating") & col(Revision.checked_digest).is_(None)


def _due(now: datetime) -> ColumnElement[bool]:
    at = col(Revision.next_attempt_at)
    return at.is_(None) | (at < now)
