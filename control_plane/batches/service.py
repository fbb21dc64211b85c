"""Creates, lists and cancels batches, and pauses all of them. The worker does the rest, from the rows.

Another tenant's batch or file is as absent as none.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session, col, select

from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.batches import files, progress
from control_plane.batches.models import BatchPause, BatchRow
from control_plane.batches.schemas import (
    BatchView,
    Endpoint,
    OpenAIPage,
    PauseView,
    Priority,
    openai_page,
)
from control_plane.settings import BatchSettings
from control_plane.tenants import service as tenants
from core.db import Instant, among, database_now
from core.errors import Conflict, InvalidRequest, NotFound, TooManyRequests
from core.ids import new_id
from core.struct_types import view_of

PRIORITIES: Final[dict[Priority, int]] = {"high": 0, "normal": 1, "low": 2}
_QUEUE: Final = sa.table(
    "batch_queue",
    *(sa.column(name, sa.Text) for name in ("id", "status")),
    *(sa.column(name, sa.BigInteger) for name in ("total", "waiting")),
    *(sa.column(name, Instant) for name in ("in_progress_at", "finalizing_at", "ended_at")),
).c
"""The batches of every tenant, by how far they are: without their tenants, which their owners must not learn."""
_SPEED_OF: Final = 20  # the last batches whose speed counts
_RETRY_S: Final = 60
_ENDED: Final = ("completed", "failed", "expired", "cancelled")
_INPUT_KEPT: Final = timedelta(days=2)
"""An input file does not expire until then after its batch: lines that may have run are asked for their answers."""


def create(
    session: Session,
    settings: BatchSettings,
    principal: Principal,
    *,
    input_file_id: str,
    endpoint: Endpoint,
    labels: dict[str, str] | None = None,
    priority: Priority = "normal",
) -> BatchRow:
    """Create a batch whose lines are checked next. Raises NotFound for the file, InvalidRequest for one of another
    purpose, and TooManyRequests where the tenant has too many batches.
    """
    tenant_id = principal.own_tenant_id
    tenants.lock(session, tenant_id)  # so that no two requests create the last batch
    open_ones = select(sa.func.count()).where(col(BatchRow.tenant_id) == tenant_id, col(BatchRow.ended_at).is_(None))
    if session.exec(open_ones).one() >= settings.batch_open_max:
        raise TooManyRequests(
            f"A tenant may have {settings.batch_open_max} batches that have not ended. Wait until one has.",
            code="too_many_batches",
            retry_after_s=_RETRY_S,
        )
    file = files.find(session, tenant_id=tenant_id, file_id=input_file_id, param="input_file_id", lock=True)
    if file.purpose != "batch":
        raise InvalidRequest(
            "input_file_id: the file has the purpose batch_output. Upload one of the purpose batch.",
            param="input_file_id",
        )
    now = database_now(session)
    row = BatchRow(
        id=new_id("batch"),
        tenant_id=tenant_id,
        key_id=principal.key_id,
        input_file_id=file.id,
        endpoint=endpoint,
        priority=PRIORITIES[priority],
        labels=labels,
        created_at=now,
        expires_at=now + timedelta(seconds=settings.batch_window_s),
    )
    session.add(row)
    file.expires_at = max(file.expires_at, row.expires_at + _INPUT_KEPT)
    audited(session, principal, "batch.created", row.id, details={"input_file_id": file.id, "endpoint": endpoint})
    session.flush()
    return row


def open_callbacks(session: Session, tenant_id: str) -> set[str | None]:
    """The endpoints that the tenant's open batches will call."""
    mine = select(BatchRow.callback_endpoint_id).where(BatchRow.tenant_id == tenant_id)
    return set(session.exec(mine.where(col(BatchRow.ended_at).is_(None))))


def get(session: Session, *, tenant_id: str, batch_id: str) -> BatchView:
    """One of the tenant's batches. Raises NotFound."""
    return view(session, _find(session, tenant_id=tenant_id, batch_id=batch_id))


def page(session: Session, *, tenant_id: str, after: str | None, limit: int) -> OpenAIPage[BatchView]:
    """A page of the tenant's batches, newest first."""
    mine = select(BatchRow).where(BatchRow.tenant_id == tenant_id)
    if after is not None:
        mine = mine.where(col(BatchRow.id) < after)
    rows = session.exec(mine.order_by(col(BatchRow.id).desc()).limit(limit + 1)).all()
    return openai_page(views(session, rows), limit)


def cancel(session: Session, principal: Principal, batch_id: str) -> BatchView:
    """Send no further line of a batch. Lines that run end first. Idempotent. Raises NotFound, and Conflict for a batch
    whose lines have all ended.
    """
    row = _find(session, tenant_id=principal.own_tenant_id, batch_id=batch_id, lock=True)
    if row.status not in ("validating", "in_progress", "cancelling", "cancelled"):
        raise Conflict(
            f"The batch is {row.status}, so nothing is left to cancel.", code="batch_not_cancellable", param="batch_id"
        )
    if row.status in ("validating", "in_progress"):
        row.status, row.cancelling_at = "cancelling", database_now(session)
        row.end_code, row.end_message = "batch_cancelled", "The batch was cancelled before this line ran."
        audited(session, principal, "batch.cancelled", row.id)
    session.flush()
    return view(session, row)


def view(session: Session, row: BatchRow) -> BatchView:
    """A batch as OpenAI's SDKs know it."""
    return views(session, [row])[0]


def views(session: Session, rows: Sequence[BatchRow]) -> list[BatchView]:
    """Batches as OpenAI's SDKs know them."""
    now, paused = database_now(session), session.get(BatchPause, 1) is not None
    ends = _estimates(session, [row for row in rows if row.ended_at is None], now)
    return [_view(row, ends.get(row.id), paused=paused) for row in rows]


def estimated_end(session: Session, row: BatchRow) -> datetime:
    """When a batch that has not ended should end."""
    return _estimates(session, [row], database_now(session))[row.id]


def pause(session: Session, principal: Principal, reason: str) -> PauseView:
    """Send no line of any batch until ``resume``. Lines that run end."""
    row = session.get(BatchPause, 1) or BatchPause(reason=reason, since=database_now(session))
    row.reason = reason
    session.add(row)
    audited(session, principal, "batches.paused", "batches", details={"reason": reason})
    session.flush()
    return read_pause(session)


def resume(session: Session, principal: Principal) -> PauseView:
    """Send the lines of batches again. Idempotent."""
    if (row := session.get(BatchPause, 1)) is not None:
        session.delete(row)
        audited(session, principal, "batches.resumed", "batches")
        session.flush()
    return PauseView(paused=False)


def read_pause(session: Session) -> PauseView:
    """Whether batches pause."""
    row = session.get(BatchPause, 1)
    return PauseView(paused=False) if row is None else PauseView(paused=True, reason=row.reason, since=row.since)


def _find(session: Session, *, tenant_id: str, batch_id: str, lock: bool = False) -> BatchRow:
    mine = select(BatchRow).where(BatchRow.id == batch_id, BatchRow.tenant_id == tenant_id)
    row = session.exec(mine.with_for_update() if lock else mine).first() if batch_id.isascii() else None
    if row is None:
        raise NotFound("The batch does not exist.", code="batch_not_found", param="batch_id")
    return row


def _estimates(session: Session, rows: Sequence[BatchRow], now: datetime) -> dict[str, datetime]:
    """When each of these batches, which have not ended, should end: by its own speed, or else at that of the last
    batches, after the lines of those before it.
    """
    own = {row.id: progress.line_time(row.completed + row.failed, row.in_progress_at, now) for row in rows}
    ahead, last = dict[str, int](), None
    if slow := [batch_id for batch_id, per_line in own.items() if per_line is None]:
        ahead, last = _lines_ahead(session, slow), _last_speed(session)
    return {
        row.id: progress.estimated_end(
            row.total - row.completed - row.failed,
            ahead.get(row.id, 0),
            own[row.id] or last,
            now=now,
            expires_at=row.expires_at,
        )
        for row in rows
    }


def _lines_ahead(session: Session, batch_ids: Sequence[str]) -> dict[str, int]:
    """The lines that are left of all batches before each of these, which have not ended."""
    ahead = sa.func.sum(_QUEUE.waiting).over(order_by=_QUEUE.id) - _QUEUE.waiting
    queue = sa.select(_QUEUE.id, sa.cast(ahead, sa.BigInteger).label("ahead")).where(_QUEUE.ended_at.is_(None))
    every = queue.subquery()
    wanted = sa.select(every.c.id, every.c.ahead).where(among(every.c.id, batch_ids))
    return {batch_id: ahead for batch_id, ahead in session.execute(wanted)}  # noqa: C416 - dict() does not know row types


def _last_speed(session: Session) -> timedelta | None:
    """The mean time of a line in the last batches that were completed."""
    last = (
        sa.select(_QUEUE.total, _QUEUE.in_progress_at, _QUEUE.finalizing_at)
        .where(_QUEUE.status == "completed", _QUEUE.total > 0)
        .order_by(_QUEUE.id.desc())
        .limit(_SPEED_OF)
    )
    took, lines = timedelta(), 0
    for count, began, ended in session.execute(last):
        if began is not None and ended is not None:
            took, lines = took + (ended - began), lines + count
    return took / lines if lines else None


def _view(row: BatchRow, estimate: datetime | None, *, paused: bool) -> BatchView:
    ended_at = _seconds(row.ended_at)
    return view_of(
        row,
        BatchView,
        errors={"data": row.errors} if row.errors else None,
        created_at=_seconds(row.created_at),
        in_progress_at=_seconds(row.in_progress_at),
        expires_at=_seconds(row.expires_at),
        finalizing_at=_seconds(row.finalizing_at),
        cancelling_at=_seconds(row.cancelling_at),
        **{f"{status}_at": ended_at if row.status == status else None for status in _ENDED},
        request_counts={"total": row.total, "completed": row.completed, "failed": row.failed},
        usage={
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        metadata=row.labels,
        estimated_completion=_seconds(estimate),
        paused=paused,
    )


def _seconds(instant: datetime | None) -> int | None:
    return None if instant is None else int(instant.timestamp())
