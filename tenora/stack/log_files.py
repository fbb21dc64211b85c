"""Reads the end of the programs' log files, and with ``follow`` what is written to them from then on."""

import os
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

_POLL_S: Final = 0.2


class LogFile:
    """One log, read line by line. After a rotation or a truncation it goes on at the beginning of the new file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._partial = b""

    def lines(self) -> Iterator[str]:
        """The lines that were completed since the last call; at first all lines of the file."""
        while (file := self._file or self._opened()) is not None:
            for piece in file:
                self._partial += piece
                if self._partial.endswith(b"\n"):
                    yield from self.rest()
            if not self._replaced(file):
                return
            yield from self.rest()
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rest(self) -> Iterator[str]:
        """What was read of a line whose end is missing."""
        if self._partial:
            text, self._partial = self._partial.decode(errors="replace").rstrip("\r\n"), b""
            yield text

    def _opened(self) -> BinaryIO | None:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:  # just being rotated
            return None
        return self._file

    def _replaced(self, file: BinaryIO) -> bool:
        """Whether the path names another file by now, or a shorter one."""
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        return now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell()


def read_logs(folder: Path, program: str | None, *, last: int, follow: bool) -> Iterator[tuple[str, str]]:
    """The ``last`` lines of the program's log, each with the program's name; with ``follow``, then new lines without
    end. Without ``program``: those of all programs, also of programs that start later.
    """
    files: dict[str, LogFile] = {}
    try:
        while True:
            at_first = not files
            for name in [program] if program else sorted(path.stem for path in folder.glob("*.log")):
                file = files.setdefault(name, LogFile(folder / f"{name}.log"))
                lines = file.lines() if follow else chain(file.lines(), file.rest())
                yield from ((name, line) for line in (deque(lines, maxlen=last) if at_first else lines))
            if not follow:
                return
            time.sleep(_POLL_S)
    finally:
        for file in files.values():
            file.close()
