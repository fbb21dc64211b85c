"""What the batch process reads and writes of batches: their states, and the results of their lines. Each call is one
transaction.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy import Engine
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import col, select
from sqlmodel.sql.expression import SelectOfScalar

from control_plane import metrics
from control_plane.api_keys.models import ApiKey, is_usable
from control_plane.batches.models import BatchPause, BatchResult, BatchRow
from control_plane.batches.open_batch import BatchEnd
from control_plane.settings import BatchSettings
from control_plane.tenants.models import Tenant
from core import db
from core.contracts.grants import ServiceClass
from core.db import database_now, unit_of_work

_AT_ONCE: Final = 200
_SUMMED: Final = ("input_tokens", "cached_tokens", "output_tokens", "cost_nanos")


class LineResult(NamedTuple):
    """The result of one line. ``body`` is its line of the output or error file."""

    batch_id: str
    line: int
    failed: bool
    body: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_nanos: int = 0


def store(engine: Engine, results: list[LineResult]) -> None:
    """Store these results, and take them out of the list. A line that has one keeps it. Raises as the database."""
    while results:
        some = results[:_AT_ONCE]
        _store(engine, some)
        del results[: len(some)]


def _store(engine: Engine, results: Sequence[LineResult]) -> None:
    rows = [{"batch_id": r.batch_id, "line": r.line, "failed": r.failed, "body": r.body} for r in results]
    with unit_of_work(engine) as session:
        stored = session.execute(
            insert(BatchResult)
            .values(rows)
            .on_conflict_do_nothing()
            .returning(col(BatchResult.batch_id), col(BatchResult.line))
        )
        first = {(batch_id, line) for batch_id, line in stored}
        new = [result for result in results if (result.batch_id, result.line) in first]
        by_batch: defaultdict[str, list[LineResult]] = defaultdict(list)
        for result in new:
            by_batch[result.batch_id].append(result)
        for batch_id in sorted(by_batch):
            session.execute(_sums(batch_id, by_batch[batch_id]))
    for result in new:
        metrics.BATCH_LINES.labels("failed" if result.failed else "completed").inc()


def _sums(batch_id: str, results: Sequence[LineResult]) -> sa.Update:
    failed = sum(each.failed for each in results)
    added = {name: sum(getattr(each, name) for each in results) for name in _SUMMED}
    added |= {"completed": len(results) - failed, "failed": failed}
    added["result_bytes"] = sum(len(each.body) for each in results)
    grown = {name: getattr(BatchRow, name) + number for name, number in added.items()}
    return sa.update(BatchRow).where(col(BatchRow.id) == batch_id).values(grown)


class BatchState(NamedTuple):
    """A batch whose lines are sent, and how it has to end now, if it has to. ``is_served``: gateways take its lines."""

    row: BatchRow
    key_hash: str
    is_served: bool
    end: BatchEnd | None


class BatchStates(NamedTuple):
    """All of them at one instant."""

    now: datetime
    paused: bool
    states: Sequence[BatchState]


def read_states(engine: Engine, limits: BatchSettings) -> BatchStates:
    """What the worker needs to know now."""
    with unit_of_work(engine) as session:
        now = database_now(session)
        due = col(BatchRow.status).in_(["in_progress", "cancelling"]) | (
            (col(BatchRow.status) == "validating") & (col(BatchRow.expires_at) <= now)
        )
        found = (
            select(BatchRow, ApiKey.key_hash, ~is_usable(now), Tenant.status)
            .join(ApiKey, col(ApiKey.id) == BatchRow.key_id)
            .join(Tenant, col(Tenant.id) == BatchRow.tenant_id)
            .where(col(BatchRow.ended_at).is_(None), col(BatchRow.ends_as).is_(None), due)
        )
        states = []
        for row, key_hash, revoked, status in session.exec(found):
            end = _end_of(row, limits, now=now, revoked=revoked, suspended=status != "active")
            states.append(BatchState(row, key_hash, not revoked and status == "active", end))
        return BatchStates(now, session.get(BatchPause, 1) is not None, states)


def _end_of(row: BatchRow, limits: BatchSettings, *, now: datetime, revoked: bool, suspended: bool) -> BatchEnd | None:
    if row.status == "cancelling":
        return BatchEnd("cancelled", str(row.end_code), str(row.end_message))
    if row.expires_at <= now:
        return BatchEnd("expired", "batch_expired", "The batch expired before this line ran.")
    if revoked:
        text = "The API key that made the batch was revoked or has expired. Create the batch with another key."
        return BatchEnd("completed", "invalid_api_key", text)
    if suspended:
        return BatchEnd("completed", "tenant_suspended", "This tenant is suspended.")
    if row.result_bytes > limits.batch_results_bytes_max:
        text = f"The answers of the batch have more than {limits.batch_results_bytes_max} bytes. Split it."
        return BatchEnd("completed", "results_too_large", text)
    return None


def lines_done(engine: Engine, batch_id: str) -> set[int]:
    """The lines of a batch that have a result."""
    with unit_of_work(engine) as session:
        return set(session.exec(select(BatchResult.line).where(BatchResult.batch_id == batch_id)))


def end_sending(engine: Engine, batch_id: str, end: BatchEnd) -> None:
    """No line of the batch is sent any more. Its files are written next. Idempotent."""
    mine = sa.update(BatchRow).where(col(BatchRow.id) == batch_id, col(BatchRow.ends_as).is_(None))
    status = sa.case((col(BatchRow.status) == "cancelling", "cancelling"), else_="finalizing")
    with unit_of_work(engine) as session:
        session.execute(
            mine.where(col(BatchRow.ended_at).is_(None)).values(
                ends_as=end.status,
                end_code=end.code or None,
                end_message=end.message.replace("\0", " ") or None,
                finalizing_at=sa.func.clock_timestamp(),
                status=status,
            )
        )
    structlog.get_logger().info("batch has run", batch=batch_id, ends_as=end.status, code=end.code)


def set_class(engine: Engine, row: BatchRow, service_class: ServiceClass) -> None:
    """Let the lines of a batch run in this class from now on: interactive while its deadline is in danger."""
    with unit_of_work(engine) as session:
        session.execute(sa.update(BatchRow).where(col(BatchRow.id) == row.id).values(service_class=service_class))
    row.service_class = service_class
    if service_class != "batch":
        metrics.BATCHES_RISEN.inc()
    structlog.get_logger().warning("batch changed its class of service", batch=row.id, service_class=service_class)


def take_one(engine: Engine, lock: int, due: SelectOfScalar[BatchRow], work: Callable[[BatchRow], None]) -> bool:
    """Do this work on one of these batches, in one process at a time. Returns whether there was one. It is a random
    one, so that a batch whose work fails, which the loop logs, holds up no other batch.
    """
    with db.exclusively(engine, lock) as alone:
        if not alone:
            return False
        with unit_of_work(engine) as session:
            row = session.exec(due.order_by(sa.func.random()).limit(1)).first()
        if row is not None:
            work(row)
    return row is not None
