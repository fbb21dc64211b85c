"""Sends the lines of batches to gateways, and stores their answers: one process at a time, chosen by an advisory lock.

Whatever dies, a line gets one result. A line without one is sent again with the same Idempotency-Key, so a gateway
repeats what it has answered. A result is written once for its batch and line, and the batch's sums change with it.
"""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Final

import structlog
from sqlalchemy import Engine

from adapters.object_store.s3 import Bucket, ObjectMissing
from control_plane import metrics
from control_plane.batches import files, lines, results, sending
from control_plane.batches.models import BatchRow
from control_plane.batches.open_batch import BatchEnd, LineTry, OpenBatch, chosen, rank
from control_plane.batches.pace import Pace
from control_plane.batches.progress import in_danger
from control_plane.batches.results import BatchState, LineResult
from control_plane.batches.senders import Senders
from control_plane.batches.sending import LineAnswer, Verdict
from control_plane.batches.settings import BatchWorkerSettings
from control_plane.settings import BatchSettings
from core import clock, db

_log: Final = structlog.get_logger()
_LOCK: Final = 7_301_945_139  # any fixed number; one process sends at a time
_ROUND_S: Final = 5.0
_REFRESH_S: Final = 1.0
_WAIT_S: Final = 0.1
_KEY_RETRY_S: Final = 5.0
_BEGUN_AT_ONCE: Final = 500
"""Lines of one turn, those of dead models included, which fail without being sent."""
_FALL_FACTOR: Final = 2
"""A batch that has risen falls back once it has so many times the spare time that it needs not to rise."""


class BatchWorker:
    """The rounds of one process."""

    def __init__(
        self,
        engine: Engine,
        bucket: Bucket,
        send: Callable[[LineTry], LineAnswer],
        settings: BatchWorkerSettings,
        limits: BatchSettings,
    ) -> None:
        self._engine = engine
        self._bucket = bucket
        self._settings = settings
        self._limits = limits
        self._senders = Senders(send, settings.batch_concurrency_max)
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="batch-opening")
        self._opening: tuple[BatchState, Future[OpenBatch]] | None = None
        self._open: dict[str, OpenBatch] = {}
        self._results: list[LineResult] = []  # not stored yet
        self._turn = itertools.count(1)
        self._turns: dict[str, int] = {}  # the last one of each tenant
        self._put_back: dict[str, int] = {}  # the turn at which each stuck batch was
        self._paused = False
        self._refresh_at_s = 0.0

    def run_once(self) -> bool:
        """Send lines for some seconds, if this process leads. Returns whether there is more to do."""
        try:
            with db.exclusively(self._engine, _LOCK) as leads:
                if leads:
                    self._lead(time.monotonic() + _ROUND_S)
                else:
                    self._forget()
        except BaseException:
            self._forget()
            raise
        return bool(self._open or self._opening)

    def _lead(self, until_s: float) -> None:
        self._refresh()
        while (self._open or self._opening) and time.monotonic() < until_s:
            self._begin_lines()
            for line, answer in self._senders.answers(_WAIT_S):
                self._answered(line, answer)
            results.store(self._engine, self._results)
            self._take_opened()
            self._close_those_that_are_over()
            if time.monotonic() >= self._refresh_at_s:
                self._refresh()

    def _forget(self) -> None:
        """Another process may lead. It asks again for what runs here, and gets the same answers."""
        if self._opening is not None:
            self._opening[1].add_done_callback(_drop)
            self._opening = None
        for batch in self._open.values():
            batch.content.close()
        self._open.clear()
        self._results.clear()

    def _refresh(self) -> None:
        """Read which batches run, are cancelled, have expired or have a dead key; open and stop accordingly."""
        now_s = time.monotonic()
        self._refresh_at_s = now_s + _REFRESH_S
        now, self._paused, states = results.read_states(self._engine, self._limits)
        live = {state.row.id: state for state in states if self._goes_on(state, now, now_s)}
        for batch_id in self._open.keys() - live.keys():  # it has ended without this process
            self._open.pop(batch_id).content.close()
        self._put_back = {batch_id: turn for batch_id, turn in self._put_back.items() if batch_id in live}
        tenants = {state.row.tenant_id for state in live.values()}
        self._turns = {tenant_id: turn for tenant_id, turn in self._turns.items() if tenant_id in tenants}
        rows = chosen([state.row for state in live.values()], self._settings.batch_running_max, self._put_back)
        first = {row.id for row in rows}
        for batch_id, batch in self._open.items():
            if batch_id in first and not batch.is_chosen:
                batch.moved_at_s = now_s
            batch.is_chosen = batch_id in first
        unread = next((row.id for row in rows if row.id not in self._open), None)
        if unread is not None and self._opening is None:
            self._opening = live[unread], self._opener.submit(self._read, live[unread], now)
        paces = sum(batch.pace.limit for batch in self._open.values())
        metrics.BATCH_CONCURRENCY.set(min(paces, self._settings.batch_concurrency_max))

    def _goes_on(self, state: BatchState, now: datetime, now_s: float) -> bool:
        """Whether lines of a batch may be left to send, or to ask for."""
        row, batch = state.row, self._open.get(state.row.id)
        if batch is not None:
            batch.row, batch.key_hash = row, state.key_hash
            if batch.is_chosen and batch.is_stuck(now_s) and not self._paused:
                self._put_back[row.id], batch.moved_at_s = next(self._turn), now_s
        if state.end is None:
            self._choose_class(row, batch, now)
        elif batch is not None:
            batch.stop(state.end)
        elif row.in_progress_at is None or not state.is_served:
            results.end_sending(self._engine, row.id, state.end)
            return False
        return True

    def _choose_class(self, row: BatchRow, batch: OpenBatch | None, now: datetime) -> None:
        """Let the batch rise if its deadline is in danger, and fall back if it is not."""
        done, has_risen = row.completed + row.failed, row.service_class != "batch"
        if self._paused:
            if batch is not None:
                batch.since, batch.done_before = now, done
            return
        since, done_before = (now, done) if batch is None else (batch.since, batch.done_before)
        percent = self._settings.batch_rise_percent * (_FALL_FACTOR if has_risen else 1)
        danger = in_danger(row, since=since, done_before=done_before, now=now, spare_percent=percent)
        if danger != has_risen:
            results.set_class(self._engine, row, "interactive" if danger else "batch")

    def _read(self, state: BatchState, now: datetime) -> OpenBatch:
        """Copy a batch's file to this machine and order the lines that have no result yet. Where the batch ends early,
        any of them may have run. It takes seconds, so it has a thread of its own.
        """
        row = state.row
        done = results.lines_done(self._engine, row.id)
        content = files.fetch(self._bucket, row.input_file_id)
        try:
            plans = lines.in_order(lines.check(content, row.endpoint, self._limits).plans)
        except BaseException:
            content.close()
            raise
        pace = Pace(self._settings.batch_concurrency_max)
        batch = OpenBatch(row, state.key_hash, content, pace, since=now, done_before=row.completed + row.failed)
        for plan in plans:
            if plan.line not in done:
                batch.add(LineTry(batch, plan, may_have_run=state.end is not None))
        return batch

    def _take_opened(self) -> None:
        if self._opening is None or not self._opening[1].done():
            return
        (state, opened), self._opening = self._opening, None
        try:
            batch = opened.result()
        except ObjectMissing:
            gone = BatchEnd("completed", "file_deleted", "The input file does not exist any more.")
            results.end_sending(self._engine, state.row.id, state.end or gone)
        except Exception as error:  # noqa: BLE001 - the object store is away, or a defect; others are opened first
            _log.warning("batch not opened", batch=state.row.id, exc_info=error)
            self._put_back[state.row.id] = next(self._turn)
            return
        else:
            batch.end, batch.moved_at_s = state.end, time.monotonic()
            self._open[state.row.id] = batch
        self._refresh_at_s = 0.0  # open the next one

    def _begin_lines(self) -> None:
        """Send as many lines as may run, in turn for the tenants."""
        for _ in range(_BEGUN_AT_ONCE):
            if self._senders.running >= self._settings.batch_concurrency_max:
                return
            now_s = time.monotonic()
            due = [
                batch
                for batch in self._open.values()
                if batch.has_due(now_s) and (batch.end is not None or not self._paused)
            ]
            if not due:
                return
            batch = min(due, key=lambda each: (self._turns.get(each.row.tenant_id, 0), rank(each.row)))
            self._turns[batch.row.tenant_id] = next(self._turn)
            self._begin(batch, batch.next_line(now_s))

    def _begin(self, batch: OpenBatch, line: LineTry) -> None:
        row, plan = batch.row, line.plan
        if (reason := batch.dead_models.get(plan.model)) is not None and batch.end is None:
            body = sending.unanswered_line(row.id, plan, *reason)
            self._results.append(LineResult(row.id, plan.line, failed=True, body=body))
            return
        if not line.request_id:
            line.request_id = lines.request_id(
                row.id, plan.line, line.attempt, created_ms=clock.to_ms(row.created_at), now_ms=clock.now_ms()
            )
        line.body, line.only_stored = lines.body_of(batch.content, plan), batch.end is not None
        batch.running += 1
        self._senders.begin(line)

    def _answered(self, line: LineTry, answer: LineAnswer) -> None:
        """Store the line's result, or send it again, by what the answer means."""
        batch, line.body = line.batch, b""
        batch.running -= 1
        if self._open.get(batch.row.id) is not batch:
            return  # forgotten meanwhile
        now_s = time.monotonic()
        line.failures += answer.is_failure
        if answer.lacks_room:
            batch.refused(now_s)
        if line.only_stored:
            found = sending.verdict_of_stored(answer)
        else:
            found = sending.verdict(answer, failures=line.failures, failures_max=self._settings.batch_attempts_max)
        if found in ("again", "settled", "key"):
            self._send_again(line, answer, found, now_s)
            return
        batch.answered(now_s)
        if found == "left":
            return
        if found == "model":
            batch.dead_models[line.plan.model] = answer.code, answer.message
        elif found == "batch":
            batch.stop(BatchEnd("completed", answer.code, answer.message))
        self._put_back.pop(batch.row.id, None)
        failed = found != "completed"
        body = sending.answered_line(line, answer)
        self._results.append(LineResult(batch.row.id, line.plan.line, failed, body, *answer.usage, answer.price_nanos))

    def _send_again(self, line: LineTry, answer: LineAnswer, found: Verdict, now_s: float) -> None:
        pause_s = min(answer.retry_after_s * 2**line.failures, self._settings.batch_retry_max_s)
        line.may_have_run = line.may_have_run or not answer.was_refused
        if found == "settled":  # it ran, and its answer is lost
            line.attempt, pause_s = line.attempt + 1, 0.0
            line.is_paid = line.is_paid or answer.code == "request_settled"
        elif found == "key":  # the next look says whether the key is dead, or the gateway does not know it yet
            _log.warning("gateway refused the key of a batch", batch=line.batch.row.id, code=answer.code)
            pause_s = _KEY_RETRY_S
        if found == "settled" or not line.may_have_run:
            line.request_id = ""  # the next one tells the hour in which it is sent
        if answer.is_used_up:
            line.batch.rests_until_s = max(line.batch.rests_until_s, now_s + pause_s)
        metrics.BATCH_LINES.labels("repeated").inc()
        line.batch.send_later(line, now_s + pause_s)

    def _close_those_that_are_over(self) -> None:
        for batch in list(self._open.values()):
            if batch.is_over:
                results.end_sending(self._engine, batch.row.id, batch.end or BatchEnd("completed"))
                self._refresh_at_s = 0.0  # another one may begin
            elif batch.is_chosen or not batch.is_idle:
                continue
            batch.content.close()
            del self._open[batch.row.id]


def _drop(opened: "Future[OpenBatch]") -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().content.close()
