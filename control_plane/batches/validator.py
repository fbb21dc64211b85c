"""Checks the lines of new batches, one batch after the other: a batch with a bad line fails, and nothing of it runs."""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import Engine
from sqlmodel import Session, col, select

from adapters.object_store.s3 import Bucket, ObjectMissing
from control_plane import metrics
from control_plane.batches import files, lines, results
from control_plane.batches.ending import announce
from control_plane.batches.lines import CheckedLines
from control_plane.batches.models import BatchRow
from control_plane.batches.schemas import LineErrorView
from control_plane.settings import BatchSettings
from control_plane.tenants import service as tenants
from core.db import database_now, total, unit_of_work

_LOCK: Final = 7_301_945_140  # any fixed number; one process checks at a time


def check_one(engine: Engine, bucket: Bucket, limits: BatchSettings) -> bool:
    """Check a new batch. Returns whether there was one."""

    def check(row: BatchRow) -> None:
        checked = _check(engine, bucket, limits, row)
        with unit_of_work(engine) as session:
            _decide(session, row.id, checked)

    return results.take_one(engine, _LOCK, select(BatchRow).where(BatchRow.status == "validating"), check)


def _check(engine: Engine, bucket: Bucket, limits: BatchSettings, row: BatchRow) -> CheckedLines:
    with unit_of_work(engine) as session:
        output_tokens = tenants.get(session, row.tenant_id).limits.output_tokens
    try:
        with files.fetch(bucket, row.input_file_id) as content:
            return lines.check(content, row.endpoint, limits, output_tokens=output_tokens)
    except ObjectMissing:
        text = "The input file does not exist any more. Upload it again."
        problem = LineErrorView(code="file_deleted", line=None, message=text, param="input_file_id")
        return CheckedLines([], [problem], 0)


def _decide(session: Session, batch_id: str, checked: CheckedLines) -> None:
    """Let the batch run, or fail it with what is wrong. A batch that was cancelled meanwhile stays so."""
    mine = select(BatchRow).where(BatchRow.id == batch_id, BatchRow.status == "validating")
    row = session.exec(mine).first()
    if row is None:
        return
    problems = checked.problems or _too_many_tokens(session, row.tenant_id, checked.tokens)
    row = session.exec(mine.with_for_update().execution_options(populate_existing=True)).first()
    if row is None:
        return
    if problems:
        row.status, row.ended_at, row.total = "failed", database_now(session), 0
        row.errors = [msgspec.structs.asdict(each) for each in problems]
        announce(session, row)
        metrics.BATCHES_ENDED.labels("failed").inc()
        return
    models = {plan.model for plan in checked.plans}
    row.status, row.in_progress_at = "in_progress", database_now(session)
    row.total, row.enqueued_tokens = len(checked.plans), checked.tokens
    row.model = models.pop() if len(models) == 1 else None


def _too_many_tokens(session: Session, tenant_id: str, tokens: int) -> Sequence[LineErrorView]:
    """What is wrong if the batch's tokens do not fit the plan beside those of the tenant's other batches."""
    most = tenants.lock(session, tenant_id).limits.batch_tokens
    if most is None:
        return ()
    others = select(total(col(BatchRow.enqueued_tokens))).where(
        BatchRow.tenant_id == tenant_id, col(BatchRow.ended_at).is_(None)
    )
    left = most - session.exec(others).one()
    if tokens <= left:
        return ()
    text = (
        f"The lines may take about {tokens} tokens; the plan allows {most} in batches that have not ended, and "
        f"{max(0, left)} are left. Wait until a batch has ended, or split this one."
    )
    return (LineErrorView(code="token_limit_exceeded", line=None, message=text, param=None),)
