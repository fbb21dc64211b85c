"""Writes one batch of the usage stream to the ledger: record, commit, then acknowledge. Entries that cannot be recorded
go to the dead letters.

A crash on any line loses nothing and bills nothing twice. An outage raises one of ``OUTAGES`` with nothing
acknowledged; the caller (``billing.worker``) tries the same batch again.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import redis as redis_client
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from billing import metrics
from billing.settings import BillingSettings
from billing.usage.recording import RecordingLimits, RecordingResult, record
from billing.usage.stream import Refusal, StreamEntry, UsageStream, decode_event
from core.contracts.usage import UsageEvent
from core.db import unit_of_work

# DBAPIError without its two subclasses that speak of the data itself, which never leave this module.
OUTAGES: Final = (redis_client.RedisError, DBAPIError, PoolTimeout)

_log = structlog.get_logger()


class ActiveTenants:
    """Tenants whose usage arrived since another thread last took them."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._lock = threading.Lock()

    def add(self, tenant_ids: Iterable[str]) -> None:
        with self._lock:
            self._ids.update(tenant_ids)

    def take(self) -> set[str]:
        """The tenants since the last call."""
        with self._lock:
            taken, self._ids = self._ids, set()
        return taken


class Meter:
    """Writes batches of stream entries to the ledger."""

    def __init__(
        self,
        engine: sa.Engine,
        stream: UsageStream,
        settings: BillingSettings,
        *,
        announce: Callable[[], None] = lambda: None,
    ) -> None:
        """``announce`` is called after each batch, for the threads that watch."""
        self._engine = engine
        self._announce = announce
        self._stream = stream
        self._settings = settings
        self._limits = RecordingLimits(
            clock_skew=timedelta(seconds=settings.billing_clock_skew_s_max),
            late_max=timedelta(days=settings.billing_late_days_max),
            price_age_max=timedelta(seconds=settings.billing_price_age_s_max),
        )
        self._watchers: list[ActiveTenants] = []

    def watch(self) -> ActiveTenants:
        """A set that this meter fills with the tenants whose usage arrives, for one thread to take."""
        watcher = ActiveTenants()
        self._watchers.append(watcher)
        return watcher

    def process(self, entries: Sequence[StreamEntry]) -> None:
        """Record and acknowledge the entries. Entries that cannot be recorded stay pending or go to the dead letters.
        Raises one of ``OUTAGES``.
        """
        if not entries:
            return
        begun = time.monotonic()
        events: dict[bytes, UsageEvent] = {}
        refused: dict[bytes, Refusal] = {}
        for entry in entries:
            match decode_event(entry.payload):
                case Refusal() as refusal:
                    refused[entry.id] = refusal
                case event:
                    events[entry.id] = event
        result = self._record(events)
        self._stream.acknowledge([*result.recorded, *result.duplicates])
        metrics.RECORDS.inc(len(result.recorded))
        metrics.TOKENS.inc(sum(event.input_tokens + event.output_tokens for event in result.recorded.values()))
        for watcher in self._watchers:
            watcher.add(event.tenant_id for event in events.values())
        self._announce()
        metrics.DUPLICATES.inc(len(result.duplicates))
        self._refuse({entry.id: entry for entry in entries}, refused | result.refused)
        metrics.BATCH_SECONDS.observe(time.monotonic() - begun)

    def _record(self, events: Mapping[bytes, UsageEvent]) -> RecordingResult:
        """Record in one transaction. When the data itself makes it fail, halve the batch until the failing entry is
        alone.
        """
        if not events:
            return RecordingResult({}, [], {})
        try:
            with unit_of_work(self._engine) as session:
                return record(session, events, self._limits)
        except Exception as error:
            if isinstance(error, OUTAGES) and not isinstance(error, DataError | IntegrityError):
                raise
            if len(events) == 1:
                (entry_id,) = events
                if not isinstance(error, DBAPIError):  # a defect in our code: only the traceback shows where
                    _log.exception("usage event cannot be stored", entry=entry_id.decode())
                reason = f"{type(error).__name__}: {getattr(error, 'orig', error)}"[:500]
                return RecordingResult({}, [], {entry_id: Refusal("unstorable", reason)})
        entry_ids = list(events)
        halves = entry_ids[: len(entry_ids) // 2], entry_ids[len(entry_ids) // 2 :]
        first, second = (self._record({each: events[each] for each in half}) for half in halves)
        return first.joined(second)

    def _refuse(self, entries: Mapping[bytes, StreamEntry], refused: Mapping[bytes, Refusal]) -> None:
        """Leave refused entries pending for another attempt; move those without attempts left to the dead letters."""
        if not refused:
            return
        attempts = self._stream.attempts(list(refused))
        for entry_id, refusal in refused.items():
            metrics.REFUSED.labels(refusal.code).inc()
            allowed = self._settings.billing_attempts_max
            if refusal.code in ("unpriced", "early"):  # time, or an admin, may cure it
                allowed = self._settings.billing_unpriced_attempts_max
            done = attempts.get(entry_id, 0)  # 0: another worker has processed it meanwhile
            log = _log.bind(entry=entry_id.decode(), code=refusal.code, reason=refusal.reason, attempt=done)
            if done < allowed:
                log.warning("usage event refused; it will be tried again", attempts_max=allowed)
            elif self._stream.dead_letter(
                entries[entry_id],
                about={"code": refusal.code, "reason": refusal.reason, "attempts": str(done)},
                dead_letters_max=self._settings.billing_dead_letters_max,
            ):
                metrics.DEAD_LETTERS.labels(refusal.code).inc()
                log.error("usage event set aside; repair the cause, then run: python -m billing redrive")
            else:
                log.error("dead letters are full; the event stays pending. Run: python -m billing redrive")
