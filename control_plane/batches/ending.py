"""Ends batches whose lines have all ended: writes the output and error files, and informs the tenant.

The files have ids that follow from the batch, so what a crash left half-way is written again in the same place.
"""

from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile
from typing import IO, Final

import sqlalchemy as sa
import structlog
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from adapters.object_store.s3 import Bucket, ObjectMissing
from billing.notifications.event_types import BATCH_ENDED
from billing.notifications.outbox import notify
from control_plane import metrics
from control_plane.batches import files, lines, results
from control_plane.batches.lines import LinePlan
from control_plane.batches.models import BatchFile, BatchResult, BatchRow
from control_plane.batches.sending import unanswered_line
from control_plane.settings import BatchSettings
from core import clock
from core.db import database_now, unit_of_work
from core.ids import derived_id

_LOCK: Final = 7_301_945_141  # any fixed number; one process writes files at a time
_ROWS_AT_ONCE: Final = 100
_LEFT: Final = "not_run", "The line was not run."


def end_one(engine: Engine, bucket: Bucket, limits: BatchSettings) -> bool:
    """End one batch. Returns whether there was one."""

    def end(row: BatchRow) -> None:
        with TemporaryFile() as output, TemporaryFile() as errors:
            counts = [0, 0]
            for failed, body in _lines(engine, bucket, limits, row):
                counts[failed] += 1
                (errors if failed else output).write(body)
            written = {"output": output, "error": errors}
            sizes = {name: file.tell() for name, file in written.items()}
            file_ids = {name: _put(bucket, row, name, file) for name, file in written.items() if sizes[name]}
        with unit_of_work(engine) as session:
            mine = session.get_one(BatchRow, row.id, with_for_update=True)
            mine.completed, mine.failed = counts
            _finish(session, mine, limits, file_ids, sizes)
        metrics.BATCHES_ENDED.labels(str(row.ends_as)).inc()

    due = select(BatchRow).where(col(BatchRow.ends_as).is_not(None), col(BatchRow.ended_at).is_(None))
    return results.take_one(engine, _LOCK, due, end)


def _put(bucket: Bucket, row: BatchRow, name: str, content: IO[bytes]) -> str:
    file_id = derived_id("file", clock.to_ms(row.created_at), row.id, name)
    files.put(bucket, file_id, content)
    return file_id


def _finish(
    session: Session, row: BatchRow, limits: BatchSettings, file_ids: Mapping[str, str], sizes: Mapping[str, int]
) -> None:
    now = database_now(session)
    for name, file_id in file_ids.items():
        file = BatchFile(
            id=file_id, tenant_id=row.tenant_id, filename=f"{row.id}_{name}.jsonl", purpose="batch_output",
            size_bytes=sizes[name], created_at=now, stored_at=now, expires_at=files.expiry(now, limits),
        )  # fmt: skip
        session.add(file)
    row.status, row.ended_at = str(row.ends_as), now
    row.output_file_id, row.error_file_id = file_ids.get("output"), file_ids.get("error")
    session.execute(sa.delete(BatchResult).where(col(BatchResult.batch_id) == row.id))
    announce(session, row)


def _lines(engine: Engine, bucket: Bucket, limits: BatchSettings, row: BatchRow) -> Iterator[tuple[bool, bytes]]:
    """Whether each line of the input failed, and its line of the output or error file, in the order of the input. A
    batch whose lines were never found good has none. Where the input is gone, only results are left.
    """
    plans = _plans(bucket, limits, row) if row.in_progress_at is not None else []
    reason = (row.end_code, row.end_message or "") if row.end_code else _LEFT
    found = (
        select(BatchResult.line, BatchResult.failed, BatchResult.body)
        .where(BatchResult.batch_id == row.id)
        .order_by(col(BatchResult.line))
    )
    with unit_of_work(engine) as session:
        left = iter(plans)
        for line, failed, body in session.exec(found.execution_options(yield_per=_ROWS_AT_ONCE)):
            for plan in left:
                if plan.line == line:
                    break
                yield True, unanswered_line(row.id, plan, *reason)
            yield failed, body
        for plan in left:
            yield True, unanswered_line(row.id, plan, *reason)


def _plans(bucket: Bucket, limits: BatchSettings, row: BatchRow) -> list[LinePlan]:
    try:
        with files.fetch(bucket, row.input_file_id) as content:
            return lines.check(content, row.endpoint, limits).plans
    except ObjectMissing:
        structlog.get_logger().warning("the input of a batch is gone", batch=row.id, file=row.input_file_id)
        return []


def announce(session: Session, row: BatchRow) -> None:
    """Inform the tenant of what a batch has become: its callback, or else the endpoints that want it."""
    notify(
        session,
        tenant_id=row.tenant_id,
        event_type=BATCH_ENDED,
        data={
            "batch_id": row.id,
            "status": row.status,
            "total": row.total,
            "completed": row.completed,
            "failed": row.failed,
            "output_file_id": row.output_file_id,
            "error_file_id": row.error_file_id,
        },
        dedupe_key=f"{BATCH_ENDED}:{row.id}",
        endpoint_id=row.callback_endpoint_id,
    )
