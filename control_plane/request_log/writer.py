"""Moves the request log from its stream in Redis to files in S3.

A process that dies on any line loses no row and doubles none: a batch is written before it is acknowledged, and what
was not acknowledged is read again as the same batch, which has the same name. Where Redis itself makes a row twice,
because it had forgotten a settlement, queries show one of the two. Fails open: while S3 is away, entries wait in Redis
up to the gateways' bound.
"""

import secrets
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, cast

import msgspec
import redis as redis_client
import structlog

from adapters.object_store.s3 import Bucket
from control_plane import metrics
from control_plane.request_log.files import EntryId, RequestLogFile
from control_plane.request_log.rows import rows_of
from core import clock, redis_keys
from core.contracts.request_log import LoggedRequest

_STREAM: Final = redis_keys.REQUEST_LOG
_GROUP: Final = redis_keys.REQUEST_LOG_GROUP
_GONE_MS: Final = 86_400_000  # a consumer that has not read for so long has no process
_log = structlog.get_logger()

Entries = list[tuple[bytes, dict[bytes, bytes] | None]]


class RequestLogWriter:
    """The writer of one process. Several may run: each reads as a consumer of its own, one batch at a time."""

    def __init__(
        self, redis: redis_client.Redis, bucket: Bucket, *, entries_max: int, dead_after_ms: int = 30_000
    ) -> None:
        self._redis = redis
        self._bucket = bucket
        self._entries_max = entries_max
        self._dead_after_ms = dead_after_ms
        self._consumer = secrets.token_hex(8)

    def run_once(self) -> bool:
        """Write what was read and not acknowledged, then the next entries. Returns whether there may be more."""
        try:
            self._recover()
            entries = self._read(self._consumer, ">", count=self._entries_max)
        except redis_client.ResponseError as error:
            if not str(error).startswith(("NOGROUP", "no such key")):
                raise
            self._redis.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)  # the first time, or Redis forgot it
            return True
        if entries:
            self._write(entries)
            metrics.REQUEST_LOG_LAG.set(max(0, clock.now_ms() - EntryId.of(entries[0][0]).ms) / 1000)
        return len(entries) == self._entries_max

    def _recover(self) -> None:
        """Write the batches of this process's failed rounds, and those of consumers that have died. A consumer that
        only paused may write the same batch at the same time, which changes nothing.
        """
        for consumer in self._redis.xinfo_consumers(_STREAM, _GROUP):
            name = consumer["name"].decode()
            is_own = name == self._consumer
            if consumer["pending"] and (is_own or consumer["idle"] >= self._dead_after_ms):
                self._write(self._read(name, "0", count=None), again=True)
            elif not is_own and not consumer["pending"] and consumer["idle"] >= _GONE_MS:
                self._redis.xgroup_delconsumer(_STREAM, _GROUP, name)

    def _read(self, consumer: str, after: str, *, count: int | None) -> Entries:
        reply = cast(
            "list[tuple[bytes, Entries]]", self._redis.xreadgroup(_GROUP, consumer, {_STREAM: after}, count=count)
        )
        return [entry for _, entries in reply for entry in entries]

    def _write(self, entries: Entries, *, again: bool = False) -> None:
        """Write one batch and acknowledge it. ``again``: a file that exists is kept, since rows of it may have been
        erased meanwhile, or dropped from the stream.
        """
        if not entries:
            return
        from control_plane.request_log.parquet import to_parquet  # a worker starts without pyarrow

        ids = [entry_id for entry_id, _ in entries]
        first, last = EntryId.of(ids[0]), EntryId.of(ids[-1])
        for day, rows in sorted(_by_day(entries).items()):
            file = RequestLogFile(day, first, last)
            if not again or self._bucket.head(file.key) is None:
                self._bucket.put(file.key, to_parquet(rows))
                metrics.REQUEST_LOG_ROWS.inc(len(rows))
        self._acknowledge(ids)

    def _acknowledge(self, ids: Sequence[bytes]) -> None:
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(_STREAM, _GROUP, *ids)
            pipe.xdel(_STREAM, *ids)
            pipe.execute()


def _by_day(entries: Entries) -> dict[str, list[LoggedRequest]]:
    """The rows by the day of their time. An entry that cannot be read is logged and left out: it blocks no other."""
    days: defaultdict[str, list[LoggedRequest]] = defaultdict(list)
    for entry_id, fields in entries:
        if not fields:  # dropped from the stream, whose bound was reached
            metrics.REQUEST_LOG_LOST.inc()
            continue
        try:
            rows = rows_of(fields)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            metrics.REQUEST_LOG_LOST.inc()
            _log.error("entry of the request log unreadable", entry=entry_id.decode(), error=str(error))
            continue
        for row in rows:
            days[row.time.date().isoformat()].append(row)
    return days


def written_before(redis: redis_client.Redis) -> EntryId:
    """The id below which every entry has been written. What is listed afterwards has the files of all of them."""
    try:
        groups = redis.xinfo_groups(_STREAM)
        delivered = next(EntryId.of(group["last-delivered-id"]) for group in groups if group["name"] == _GROUP.encode())
        pending = redis.xpending(_STREAM, _GROUP)
    except (redis_client.ResponseError, StopIteration):  # no stream, or no group: nothing is known
        return EntryId(0, 0)
    return EntryId.of(pending["min"]) if pending["pending"] else EntryId(delivered.ms, delivered.sequence + 1)
