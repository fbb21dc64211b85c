"""The table of KV page-time: what each request of an engine has held, and the sum over all requests since the start.

EngineCore writes it to ``<run folder>/kv_areas`` (``kv_meter``), a file of fixed size that is mapped into memory. The
middleware and the agent read it at any time, without a call to EngineCore, which answers only between two steps. This
module does not import vLLM.

A record is a request's page-milliseconds up to its last change, its pages since then and the time of that change. The
reader adds the time since. A checksum tells a record that is being written from a complete one. The record of a request
that has ended stays until another request needs its place, so a reader finds it at the end of the answer.
"""

import mmap
import struct
import time
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Final

from core.kv_area import PageTime

KV_TABLE_FILE: Final = "kv_areas"
BUCKETS_MIN: Final = 1024
WAYS: Final = 8
"""Places in a bucket. A request has its place in the bucket that its id hashes to. There are at least as many buckets
as requests can run, so one in a million finds all places of its bucket held, and a record outlives its request by
thousands of others.
"""

_MAGIC: Final = b"tenorakv"
_HEADER: Final = struct.Struct("<8sII")  # magic, buckets, ways
_RECORD: Final = struct.Struct("<16sQQQ")  # key, page-milliseconds, pages, time of the last change
_CHECKSUM: Final = struct.Struct("<I")
_RECORD_BYTES: Final = 64
_TOTAL_AT: Final = _RECORD_BYTES
_RECORDS_AT: Final = 2 * _RECORD_BYTES
_TOTAL_KEY: Final = bytes(16)
_READS_MAX: Final = 100  # of one record that is being written


def now_ms() -> int:
    """The clock of the table: monotonic, and the same in every process of a machine."""
    return time.monotonic_ns() // 1_000_000


def _key(request_id: str) -> bytes:
    return blake2b(request_id.encode(), digest_size=16).digest()


def _offset(place: int) -> int:
    return _RECORDS_AT + place * _RECORD_BYTES


class Place:
    """The place of one request in the table. ``page_time`` is the request's, as its owner keeps it up to date."""

    __slots__ = ("at", "key", "page_time", "request_id")

    def __init__(self, at: int, key: bytes, request_id: str, page_time: PageTime) -> None:
        self.at = at  # offset in the file
        self.key = key
        self.request_id = request_id
        self.page_time = page_time


class KvTableWriter:
    """The only writer. Creates the file, in place of an older one."""

    def __init__(self, run_dir: Path, *, buckets: int = BUCKETS_MIN, ways: int = WAYS) -> None:
        self._buckets, self._ways = buckets, ways
        self._places: list[Place | None] = [None] * (buckets * ways)
        new = run_dir / f"{KV_TABLE_FILE}.new"
        with new.open("wb+") as file:
            file.truncate(_offset(buckets * ways))
            self._map = mmap.mmap(file.fileno(), 0)
        self._map[: _HEADER.size] = _HEADER.pack(_MAGIC, buckets, ways)
        self.write_total(PageTime())
        new.rename(run_dir / KV_TABLE_FILE)  # a reader never sees a table without its header

    def claim(self, request_id: str, page_time: PageTime) -> tuple[Place | None, str | None]:
        """A place for a request, and the id of the request that had it before. Of the requests in the bucket that hold
        no pages, the one that changed first loses its place. (None, None) when all of them hold pages.
        """
        key = _key(request_id)
        first = int.from_bytes(key[:8], "little") % self._buckets * self._ways
        best, oldest_ms = None, 0
        for index in range(first, first + self._ways):
            if (taken := self._places[index]) is None:
                best = index
                break
            _, changed_ms = taken.page_time.settled()
            if taken.page_time.pages == 0 and (best is None or changed_ms < oldest_ms):
                best, oldest_ms = index, changed_ms
        if best is None:
            return None, None
        before = self._places[best]
        place = self._places[best] = Place(_offset(best), key, request_id, page_time)
        return place, None if before is None else before.request_id

    def write(self, place: Place) -> None:
        """Write the record of the request at this place."""
        self._put(place.at, place.key, place.page_time)

    def write_total(self, total: PageTime) -> None:
        """Write the sum over all requests."""
        self._put(_TOTAL_AT, _TOTAL_KEY, total)

    def withdraw_records(self) -> None:
        """Remove every request: readers must not take a record that is not kept up to date. The sum stays."""
        self._map[_RECORDS_AT:] = bytes(len(self._map) - _RECORDS_AT)

    def _put(self, at: int, key: bytes, area: PageTime) -> None:
        page_ms, since_ms = area.settled()
        record = _RECORD.pack(key, page_ms, area.pages, since_ms)
        self._map[at : at + _RECORD.size + _CHECKSUM.size] = record + _CHECKSUM.pack(zlib.crc32(record))


class KvTableReader:
    """Reads the table of the engine in ``run_dir``. Fails open: without a readable table, nothing is known."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / KV_TABLE_FILE
        self._map: mmap.mmap | None = None
        self._buckets = self._ways = 0

    def page_ms(self, request_id: str) -> int | None:
        """Page-milliseconds of a request up to now, by the id that vLLM's answers carry. None for a request that the
        engine has not scheduled, or whose record has lost its place.
        """
        if (table := self._open()) is None:
            return None
        key = _key(request_id)
        start = _offset(int.from_bytes(key[:8], "little") % self._buckets * self._ways)
        bucket = table[start : start + self._ways * _RECORD_BYTES]
        for place in range(self._ways):
            if bucket.startswith(key, place * _RECORD_BYTES):
                return self._page_ms(table, start + place * _RECORD_BYTES, key)
        return None

    def total_page_ms(self) -> int | None:
        """Page-milliseconds of all requests since the engine's start, up to now; None without a table."""
        return None if (table := self._open()) is None else self._page_ms(table, _TOTAL_AT, _TOTAL_KEY)

    def _page_ms(self, table: mmap.mmap, at: int, wanted: bytes) -> int | None:
        for _ in range(_READS_MAX):
            found = table[at : at + _RECORD.size + _CHECKSUM.size]
            record, checksum = found[: _RECORD.size], found[_RECORD.size :]
            if _CHECKSUM.pack(zlib.crc32(record)) == checksum:
                key, page_ms, pages, since_ms = _RECORD.unpack(record)
                if key != wanted:
                    return None
                return int(page_ms + pages * max(0, now_ms() - since_ms))
        return None

    def _open(self) -> mmap.mmap | None:
        if self._map is None:
            try:
                with self._path.open("rb") as file:
                    table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                magic, self._buckets, self._ways = _HEADER.unpack(table[: _HEADER.size])
            except (OSError, ValueError, struct.error):  # an empty or a short file is none
                return None
            self._map = table if magic == _MAGIC else None
        return self._map
