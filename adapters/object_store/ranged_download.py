"""Downloads one large object into one file: ranges in parallel, each resumed where it broke off, the whole verified at
the end.

The file is allocated first, so that a full disk is detected before the first byte. A server that ignores ranges is read
in one piece. Other processes see nothing before the caller moves the file.
"""

import hashlib
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from adapters.object_store.download_progress import Download, DownloadStopped
from adapters.object_store.object_reader import ObjectBody, ObjectReader, with_attempts
from adapters.object_store.s3 import ObjectDamaged, StoreUnavailable

_CHUNK_BYTES: Final = 1 << 20
_SLOW_TIMES: Final = 4  # a part this many times slower than the others gets a new connection


class RangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Objects above ``part_bytes`` are read in parts, ``parallel`` at a time, each with ``attempts_max`` attempts. A
    part that takes longer than ``slow_s`` and several times as long as the others is requested again, once.
    """

    part_bytes: int
    parallel: int
    attempts_max: int
    slow_s: float


class _RangesIgnored(Exception):
    """The server sent other bytes than the requested range."""


def download_ranges(
    reader: ObjectReader, key: str, path: Path, *, size_bytes: int, sha256: str, plan: RangePlan, download: Download
) -> None:
    """Write the object of exactly ``size_bytes`` and ``sha256`` to ``path``.

    Raises ``ObjectMissing``; ``ObjectDamaged`` when it is another object, also in a second try; ``Unavailable`` when S3
    fails, the download's time is up or it is stopped; ``OSError`` when the disk fails.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, size_bytes)
        if size_bytes:
            os.posix_fallocate(descriptor, 0, size_bytes)
        for _ in range(2):  # data garbled in transit arrives intact the second time
            found = _RangedDownload(reader, key, descriptor, size_bytes, plan, download).run()
            if found == sha256:
                return
            download.add(-size_bytes)
        raise ObjectDamaged(f"{key} has SHA-256 {found}, not {sha256}")
    finally:
        os.close(descriptor)


class _Part:
    def __init__(self, first: int, end: int) -> None:
        self.first, self.end, self.position = first, end, first
        self.was_hurried = False


class _RangedDownload:
    def __init__(
        self, reader: ObjectReader, key: str, descriptor: int, size_bytes: int, plan: RangePlan, download: Download
    ) -> None:
        self._reader, self._key, self._descriptor = reader, key, descriptor
        self._size_bytes, self._plan, self._download = size_bytes, plan, download
        self._abandoned = threading.Event()
        self._durations_s: list[float] = []

    def run(self) -> str:
        """Fetch everything and return the SHA-256 of the file."""
        bounds = [*range(0, self._size_bytes, self._plan.part_bytes), self._size_bytes]
        parts = [_Part(first, end) for first, end in pairwise(bounds)]
        if len(parts) > 1:
            try:
                return self._run_parallel(parts)
            except _RangesIgnored:
                self._download.add(-sum(part.position - part.first for part in parts))
                self._abandoned.clear()
        whole = _Part(0, self._size_bytes)
        self._fetch(whole)
        return self._hash([whole])

    def _run_parallel(self, parts: list[_Part]) -> str:
        pool = ThreadPoolExecutor(min(self._plan.parallel, len(parts)), "adapter-range")
        try:
            futures = [pool.submit(self._fetch, part) for part in parts]
            hasher = hashlib.sha256()
            for part, future in zip(parts, futures, strict=True):  # hashed in order while later parts still arrive
                future.result()
                self._feed(hasher, part)
            return hasher.hexdigest()
        finally:
            self._abandoned.set()
            pool.shutdown(cancel_futures=True)

    def _fetch(self, part: _Part) -> None:
        started = time.monotonic()
        with_attempts(self._download, self._plan.attempts_max, lambda: self._read(part))
        self._durations_s.append(time.monotonic() - started)

    def _read(self, part: _Part) -> None:
        """Read from where the part broke off to its end."""
        started = time.monotonic()
        is_complete = part.position == 0 and part.end == self._size_bytes
        asked = () if is_complete else (part.position, part.end)
        with self._reader.open(self._key, *asked) as body:
            self._place(part, body)
            while part.position < part.end:
                self._download.check()
                if self._abandoned.is_set():
                    raise DownloadStopped(f"another part of {self._key} failed")
                self._hurry(part, time.monotonic() - started)
                chunk = body.read(min(_CHUNK_BYTES, part.end - part.position))
                if not chunk:
                    raise StoreUnavailable(f"{self._key} ended before its last byte", kind="silent")
                _write(self._descriptor, chunk, part.position)
                part.position += len(chunk)
                self._download.add(len(chunk))

    def _place(self, part: _Part, body: ObjectBody) -> None:
        """Continue where the response begins, if that is usable."""
        if body.total_bytes != self._size_bytes:
            raise ObjectDamaged(f"{self._key} has {body.total_bytes} bytes, not {self._size_bytes}")
        if body.first == part.position and body.end >= part.end:
            return
        if part.first == 0 and part.end == self._size_bytes and (body.first, body.end) == (0, self._size_bytes):
            self._download.add(-part.position)  # the server started again instead of resuming
            part.position = 0
            return
        raise _RangesIgnored

    def _hurry(self, part: _Part, elapsed_s: float) -> None:
        """Close a connection that is much slower than the others were."""
        done, needed = len(self._durations_s), self._size_bytes / self._plan.part_bytes / 2
        if part.was_hurried or elapsed_s < self._plan.slow_s or done < max(1, needed):
            return
        if elapsed_s > _SLOW_TIMES * statistics.median(self._durations_s):
            part.was_hurried = True
            raise StoreUnavailable(f"a part of {self._key} is slow", kind="slow")

    def _hash(self, parts: list[_Part]) -> str:
        hasher = hashlib.sha256()
        for part in parts:
            self._feed(hasher, part)
        return hasher.hexdigest()

    def _feed(self, hasher: "hashlib._Hash", part: _Part) -> None:
        position = part.first
        while position < part.end:
            chunk = os.pread(self._descriptor, min(_CHUNK_BYTES, part.end - position), position)
            if not chunk:
                raise ObjectDamaged(f"the copy of {self._key} was cut while it was checked")
            hasher.update(chunk)
            position += len(chunk)


def _write(descriptor: int, chunk: bytes, position: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
