"""The final decision on a revision: ready or rejected, once, with its report, its audit row and its route.

``validation_jobs`` decides by the files, ``canary_jobs`` by a replica's run, and ``revocations`` rejects open revisions
of a deleted adapter.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlmodel import Session, col, select

from control_plane import metrics
from control_plane.audit import service as audit
from control_plane.publishing.outbox import publish_change
from control_plane.registry.adapters import aliases, pins
from control_plane.registry.adapters import service as adapters
from control_plane.registry.models import Adapter, Revision
from core.db import database_now

WORKER: Final = "control_plane.worker"
"""The actor of automatic decisions."""


def accept(session: Session, row: Revision, *, actor: str = WORKER) -> None:
    """Make a validated revision ready and publish its route, unless other adapters have filled the plan meanwhile. An
    adapter's first ready revision also sets its alias ``prod``. The caller has locked the adapter, then the row in the
    state validating.
    """
    assert row.checked_digest is not None, "only what validation accepted can be ready"
    adapter = session.get_one(Adapter, row.adapter_id)
    is_first = not adapters.has_ready_revision(session, adapter)
    if is_first and (full := adapters.full_plan(session, row.tenant_id)):
        reject(session, row, [problem("adapter_quota_exceeded", full)], actor=actor)
        return
    row.status, row.digest = "ready", row.checked_digest
    _close(session, row, codes=[], actor=actor)
    if is_first:
        aliases.set_first(session, adapter, row.id, actor=actor)
    change = publish_change(session, "adapters", adapters.field_of(adapter))
    session.flush()
    row.ready_change_id = change.id
    pins.refresh(session, adapter)


def lock_adapter(session: Session, revision_id: str) -> None:
    """Lock a revision's adapter before the revision itself, as its deletion and changes of its aliases do."""
    theirs = select(Adapter).join(Revision, col(Revision.adapter_id) == col(Adapter.id))
    session.exec(theirs.where(Revision.id == revision_id).with_for_update(of=Adapter)).first()


def reject(session: Session, row: Revision, problems: Sequence[dict[str, Any]], *, actor: str = WORKER) -> None:
    """Reject an open revision for these problems and keep its notes. The caller has locked the row."""
    row.status = "rejected"
    row.report = {"problems": list(problems), "notes": (row.report or {}).get("notes", [])}
    _close(session, row, codes=[problem["code"] for problem in problems], actor=actor)


def problem(code: str, message: str) -> dict[str, Any]:
    """A problem of the whole revision instead of one file."""
    return {"code": code, "message": message, "file": None, "where": None, "count": 1}


def reject_open(session: Session, *, adapter_id: str, reason: dict[str, Any], actor: str) -> None:
    """Reject every undecided revision of an adapter. Waits for a worker that is deciding one."""
    rows = select(Revision).where(
        Revision.adapter_id == adapter_id, col(Revision.status).in_(("uploading", "validating"))
    )
    for row in session.exec(rows.order_by(col(Revision.id)).with_for_update()):
        reject(session, row, [reason], actor=actor)


def _close(session: Session, row: Revision, *, codes: Sequence[str], actor: str) -> None:
    row.decided_at = database_now(session)
    row.next_attempt_at = None
    session.add(row)
    session.flush()
    metrics.VERDICTS.labels(row.status, codes[0] if codes else "").inc()
    audit.record(
        session,
        actor=actor,
        action="revision.accepted" if row.status == "ready" else "revision.rejected",
        target=row.id,
        tenant_id=row.tenant_id,
        details={"digest": row.digest, "codes": list(codes)},
    )
