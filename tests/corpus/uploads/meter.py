"""Runs the confined child on folders and measures it. The meter is a small separate process, because the kernel never
counts a child's peak memory below that of the process that started it.

``python -m tests.corpus.uploads.meter``: one JSON line {"work", "memory_bytes", "timeout_s"} in, one line out with the
verdict, wall and processor seconds, and the largest resident size that the child reached.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from adapters.report import ValidationReport
from adapters.sandbox.child import REQUEST_FILE, ValidationRequest
from adapters.sandbox.parent import validate_confined
from adapters.settings import UploadSettings

ROOT = Path(__file__).parents[3]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one upload, and its cost."""

    verdict: ValidationReport
    wall_s: float
    cpu_s: float
    peak_bytes: int


def _measure(work: Path, settings: UploadSettings) -> Measured:
    request = msgspec.json.decode((work / REQUEST_FILE).read_bytes(), type=ValidationRequest)
    started = time.monotonic()
    verdict = validate_confined(work, request, settings)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(
        verdict=verdict,
        wall_s=time.monotonic() - started,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
    )


def _answer(asked: dict[str, Any], answers: BinaryIO) -> None:
    """Validate in a separate process, whose only children belong to one validation."""
    if (process := os.fork()) == 0:
        settings = UploadSettings(
            upload_memory_bytes_max=asked["memory_bytes"], upload_validation_timeout_s=asked["timeout_s"]
        )
        measured = _measure(Path(asked["work"]), settings)
        answers.write(msgspec.json.encode(measured) + b"\n")
        answers.flush()
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert status == 0, f"the measuring process ended with {status}"


class Meter:
    """The caller's side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def judge(self, work: Path, request: ValidationRequest, *, memory_bytes: int, timeout_s: float) -> Measured:
        """The verdict on ``work/upload``, and its cost."""
        (work / REQUEST_FILE).write_bytes(msgspec.json.encode(request))
        asked = {"work": str(work), "memory_bytes": memory_bytes, "timeout_s": timeout_s}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Measured)


@contextmanager
def running_meter() -> Iterator[Meter]:
    """A meter until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.corpus.uploads.meter"], cwd=ROOT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Meter(process)
    finally:
        process.communicate(timeout=30)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what is logged goes to standard error
        for line in sys.stdin:
            _answer(json.loads(line), answers)
