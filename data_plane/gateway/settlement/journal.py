"""Holds settlements on local disk until billing has recorded them: one journal per process, in segments.

Many settlements share one fsync, in a thread. Fails open: a settlement that the disk rejects is counted and logged, and
depends on Redis only. The journals of dead processes are settled in journal_recovery.
"""

import asyncio
import fcntl
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec
import structlog

from data_plane.gateway import metrics
from data_plane.gateway.quota.reservation import Settlement

_log = structlog.get_logger()
_HEADER: Final = Struct(">II")  # length and CRC-32 of the payload that follows
_MARKS_FLUSH_S: Final = 1.0
_LOCK_TRIES: Final = 5  # a sibling that recovers journals may hold a new lock briefly


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record: a settlement, or the request id of one that needs no recovery (``done``)."""

    settlement: Settlement | None = None
    done: str = ""


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(JournalRecord)


def encode_record(record: JournalRecord) -> bytes:
    """The bytes of a record in a segment."""
    payload = _ENCODER.encode(record)
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def read_records(raw: bytes) -> Iterator[JournalRecord]:
    """The records of a segment, up to a torn end if it has one. An intact record that cannot be decoded is logged."""
    at = 0
    while at + _HEADER.size <= len(raw):
        length, checksum = _HEADER.unpack_from(raw, at)
        payload = raw[at + _HEADER.size : at + _HEADER.size + length]
        if length == 0 or len(payload) < length or zlib.crc32(payload) != checksum:
            _log.info("journal ends in a torn record", bytes_left=len(raw) - at)
            return
        at += _HEADER.size + length
        try:
            yield _DECODER.decode(payload)
        except msgspec.MsgspecError as error:
            metrics.SETTLEMENTS_LOST.inc()
            _log.critical("journal record unreadable", record=payload.decode(errors="replace"), error=str(error))


def lock(path: Path) -> int | None:
    """Lock a file until the returned descriptor closes or the process ends. None where another process has it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)  # held by another process, or removed between opening and locking
    return None


def segments(folder: Path, name: str) -> list[Path]:
    """A process's segments, the oldest first."""
    return sorted(folder.glob(f"{name}.*.journal"))


def lock_file(folder: Path, name: str) -> Path:
    """The path of the lock file that a process holds while it runs."""
    return folder / f"{name}.lock"


@dataclass(slots=True, eq=False)
class _Segment:
    """One file. ``open_ids`` are its requests that are not done. The first ``whole_bytes`` are on disk. Where
    the file is ``torn``, an incomplete write may follow them.
    """

    path: Path
    descriptor: int
    open_ids: set[str]
    size_bytes: int = 0
    whole_bytes: int = 0
    torn: bool = False


class Journal:
    """The journal of one process."""

    def __init__(self, folder: Path, name: str, *, segment_max_bytes: int, bytes_max: int, group_s: float = 0) -> None:
        self.folder = folder
        self.name = name
        self._segment_max_bytes = segment_max_bytes
        self._bytes_max = bytes_max
        self._group_s = group_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._lock: int | None = None
        self._segments: list[_Segment] = []
        self._made = 0
        self._where: dict[str, _Segment] = {}
        self._chunks: list[bytes] = []
        self._unwritten: list[str] = []
        self._batch: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._failing = False
        self._flushing: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Acquire the lock and create the first segment. A failure is logged, and nothing is journaled."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self._own_lock()
            self._next_segment()
        except OSError as error:
            self._failed(error)

    def _own_lock(self) -> int:
        path = lock_file(self.folder, self.name)
        for _ in range(_LOCK_TRIES):
            if (descriptor := lock(path)) is not None:
                return descriptor
        raise OSError(f"another process holds the lock file {path} of this process")

    def append(self, settlement: Settlement) -> "asyncio.Future[None] | None":
        """Journal a settlement with the next flush. The returned future is done once the disk has it or has failed. The
        future is shared, so wait for it with ``asyncio.wait``, never with ``await``. Returns None where the journal
        did not accept the settlement.
        """
        if not self._segments or settlement.request_id in self._where:
            return self._batch
        segment = self._segments[-1]
        chunk = encode_record(JournalRecord(settlement=settlement))
        if sum(each.size_bytes for each in self._segments) + len(chunk) > self._bytes_max:
            self._failed(OSError(f"the journal is full: its limit is {self._bytes_max} bytes"))
            return None
        self._where[settlement.request_id] = segment
        segment.open_ids.add(settlement.request_id)
        self._unwritten.append(settlement.request_id)
        self._put(segment, chunk)
        self._wake.set()
        return self._batch

    def done(self, request_id: str) -> None:
        """Mark a settlement as done: no recovery needs it."""
        if (segment := self._where.pop(request_id, None)) and self._segments:
            segment.open_ids.discard(request_id)
            self._put(self._segments[-1], encode_record(JournalRecord(done=request_id)))

    def holds(self, request_id: str) -> bool:
        """Whether the next process finds this settlement if this process dies."""
        return request_id in self._where

    async def run_forever(self) -> None:
        """Flush new records until cancelled. Marks of done requests wait longer, so that more share one fsync."""
        while True:
            try:
                async with asyncio.timeout(_MARKS_FLUSH_S):
                    await self._wake.wait()
                await asyncio.sleep(self._group_s)
            except TimeoutError:
                pass
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write and fsync all new records, then delete segments whose requests are done. The flush completes even where
        the calling task is cancelled. Never raises.
        """
        while self._flushing is not None and not self._flushing.done():
            await asyncio.wait((self._flushing,))
        self._flushing = asyncio.create_task(self._flush(), name="journal flush")
        await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        if not self._segments:
            return
        chunks, batch, written = self._chunks, self._batch, self._unwritten
        self._chunks, self._batch, self._unwritten = [], None, []
        active = self._segments[-1]
        emptied = [segment for segment in self._segments[:-1] if not segment.open_ids]
        clear = not active.open_ids and active.size_bytes > 0
        if chunks or emptied or clear:
            self._segments = [segment for segment in self._segments if segment not in emptied]
            try:
                await asyncio.get_running_loop().run_in_executor(self._pool, _write, active, chunks, emptied, clear)
                self._failing = False
            except OSError as error:
                self._failed(error)
                self._discard(written)
        if clear:
            active.size_bytes = sum(map(len, self._chunks))  # records that arrived during the write
        elif active.size_bytes > self._segment_max_bytes or self._failing:  # after a failure the file may be torn
            try:
                self._next_segment()
            except OSError as error:
                self._failed(error)
        if batch is not None and not batch.done():
            batch.set_result(None)

    async def close(self) -> None:
        """Write the rest. Where all is done, delete the files; otherwise the next process recovers them."""
        await self.flush()
        if self._lock is not None and not self._where:
            for segment in self._segments:
                segment.path.unlink(missing_ok=True)
            lock_file(self.folder, self.name).unlink(missing_ok=True)
        for segment in self._segments:
            os.close(segment.descriptor)
        self._segments = []
        if self._lock is not None:
            os.close(self._lock)
        self._pool.shutdown(wait=False)

    def _put(self, segment: _Segment, chunk: bytes) -> None:
        if self._batch is None:
            self._batch = asyncio.get_running_loop().create_future()
        segment.size_bytes += len(chunk)
        self._chunks.append(chunk)

    def _discard(self, request_ids: list[str]) -> None:
        """Stop tracking settlements that the disk rejected: the journal does not hold them."""
        for request_id in request_ids:
            if segment := self._where.pop(request_id, None):
                segment.open_ids.discard(request_id)

    def _next_segment(self) -> None:
        path = self.folder / f"{self.name}.{self._made:08d}.journal"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._made += 1
        segment = _Segment(path, descriptor, set())
        if self._segments:
            self._move_unwritten(self._segments[-1], segment)
        self._segments.append(segment)

    def _move_unwritten(self, before: _Segment, after: _Segment) -> None:
        """Assign records that arrived during the last flush to the new segment, which the next flush writes."""
        moved_bytes = sum(map(len, self._chunks))
        before.size_bytes -= moved_bytes
        after.size_bytes += moved_bytes
        for request_id in self._unwritten:
            if self._where.get(request_id) is before:
                self._where[request_id] = after
                before.open_ids.discard(request_id)
                after.open_ids.add(request_id)

    def _failed(self, error: OSError) -> None:
        metrics.JOURNAL_FAILURES.inc()
        if not self._failing:
            _log.critical("journal write failed", error=repr(error))
        self._failing = True


def _write(active: _Segment, chunks: list[bytes], emptied: list[_Segment], clear: bool) -> None:
    """Write one flush, in the journal's thread. Raises OSError; the next write first truncates an incomplete record."""
    for segment in emptied:
        os.close(segment.descriptor)
        segment.path.unlink(missing_ok=True)
    if clear:
        os.ftruncate(active.descriptor, 0)
        active.whole_bytes, active.torn = 0, False
        return
    if active.torn:  # records after a torn one would never be read
        os.ftruncate(active.descriptor, active.whole_bytes)
    raw = b"".join(chunks)
    whole_bytes, active.torn = active.whole_bytes + len(raw), True
    while raw:
        raw = raw[os.write(active.descriptor, raw) :]
    os.fdatasync(active.descriptor)
    active.whole_bytes, active.torn = whole_bytes, False
