"""The time of the newest snapshot that a machine has seen, in a file, so that no restart accepts an older one.

A machine that has seen none accepts any that is signed. Fails open where the file cannot be written, with a log line:
the memory of this process still counts.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import Final

import structlog

from core.snapshot_signing import ForgedSnapshot

_log: Final = structlog.get_logger()
_WRITE_EVERY_S: Final = 1.0


class NewestPublished:
    """Several processes may share ``file``; each keeps the larger time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._newest_ms = self._read()
        self._written_ms = self._newest_ms
        self._written_at = -_WRITE_EVERY_S

    def check(self, published_at_ms: int) -> None:
        """Raises ForgedSnapshot for a snapshot older than the newest."""
        self._newest_ms = max(self._newest_ms, self._read())
        if published_at_ms < self._newest_ms:
            raise ForgedSnapshot(
                f"the snapshot is {(self._newest_ms - published_at_ms) / 1000:g} s older than one that was seen before"
            )

    def advance(self, published_at_ms: int) -> None:
        """Remember a verified snapshot or change; written at most once a second."""
        self._newest_ms = max(self._newest_ms, published_at_ms)
        now = time.monotonic()
        if self._newest_ms > self._written_ms and now - self._written_at >= _WRITE_EVERY_S:
            self._write(max(self._newest_ms, self._read()))
            self._written_ms, self._written_at = self._newest_ms, now

    def _read(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(self._file.read_text())
        return 0

    def _write(self, newest_ms: int) -> None:
        partial = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(str(newest_ms))
            partial.replace(self._file)
        except OSError as error:
            _log.warning("newest snapshot not remembered", file=str(self._file), error=repr(error))
