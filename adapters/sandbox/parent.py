"""Runs code that reads untrusted files in a child process without network, other processes or secrets, with limits.

Fails closed: a child that crashes, is killed, answers too much or takes too long rejects the upload, and never
accepts it. Fails open, with a warning and a metric, where the kernel has no Landlock or gives no network namespace, or
where root's child cannot get its own user: the system-call filter is what always holds. What the child does
inside is in ``adapters.sandbox.child``; how it is confined is in ``core.sandbox``.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Literal

import msgspec
import structlog

from adapters import metrics
from adapters.report import UploadProblem, ValidationReport, rejected
from adapters.sandbox.child import REQUEST_FILE, REVISION_FOLDER, UPLOAD_FOLDER, ValidationRequest
from adapters.settings import UploadSettings
from core.sandbox.confinement import (
    LINE_BYTES_MAX,
    ChildLimits,
    child_environment,
    confined_command,
    missing_protections,
)

_log: Final = structlog.get_logger()
_READ_BYTES: Final = 64 * 1024
_STDERR_SHOWN: Final = 2000
_ENVIRONMENT: Final = child_environment({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
"""One thread, since the child may start none."""


class ChildFailed(Exception):
    """The child gave no usable answer."""

    def __init__(self, reason: Literal["timeout", "crashed", "too_long"], detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def validate_confined(work: Path, request: ValidationRequest, settings: UploadSettings) -> ValidationReport:
    """The report of a confined child on ``work/upload``. An accepted adapter is then in ``work/revision``."""
    (work / REQUEST_FILE).write_bytes(msgspec.json.encode(request))
    (work / REVISION_FOLDER).mkdir()
    if os.geteuid() == 0:
        _admit(work, settings.upload_user_id)
    try:
        answer = run_confined(
            [sys.executable, "-I", "-B", "-m", "adapters.sandbox.child", str(work)],
            readable=[work / REQUEST_FILE, work / UPLOAD_FOLDER],
            writable=[work / REVISION_FOLDER],
            file_bytes=request.limits.bytes_max + settings.upload_answer_bytes_max,
            settings=settings,
        )
        return msgspec.json.decode(answer, type=ValidationReport)
    except ChildFailed as failed:
        _log.warning("validation child failed", reason=failed.reason, detail=failed.detail)
        if failed.reason == "timeout":
            text = f"validation took longer than {settings.upload_validation_timeout_s:g} s; upload a smaller adapter"
            return rejected(UploadProblem(code="validation_timeout", message=text))
    except msgspec.DecodeError as error:
        _log.warning("validation child answer invalid", error=str(error))
    text = "the files could not be validated within the limits; save the adapter again with a current PEFT"
    return rejected(UploadProblem(code="validation_failed", message=text))


def run_confined(
    command: Sequence[str],
    *,
    readable: Sequence[Path],
    writable: Sequence[Path],
    file_bytes: int,
    settings: UploadSettings,
) -> bytes:
    """The standard output of ``command``, at most ``upload_answer_bytes_max`` bytes. Raises ``ChildFailed``.

    Besides its own code and the system's libraries, the command can only read ``readable`` and write ``writable``
    (where the kernel has Landlock), and no file above ``file_bytes``.
    """
    argv = confined_command(
        command,
        packages=["adapters"],
        readable=readable,
        writable=writable,
        limits=ChildLimits(
            memory_bytes=settings.upload_memory_bytes_max,
            cpu_s=settings.upload_cpu_s_max,
            file_bytes=file_bytes,
            open_files=settings.upload_open_files_max,
        ),
        user_id=settings.upload_user_id,
    )
    deadline = time.monotonic() + settings.upload_validation_timeout_s
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - our own launcher
            argv,
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdout is not None, "it was asked for"
        try:
            answer = _read_bounded(process.stdout, deadline, settings.upload_answer_bytes_max)
            status = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ChildFailed("timeout", "it closed its output and kept running") from None
        finally:
            _end(process)
            _report_missing(errors)
        if status != 0:
            errors.seek(0)
            raise ChildFailed("crashed", f"status {status}: {errors.read()[-_STDERR_SHOWN:].decode(errors='replace')}")
        return answer


def _admit(work: Path, group_id: int) -> None:
    """Let the child's group read ``work`` and write the revision. The owner stays, in case the child runs as it."""
    for path in (work, *work.rglob("*")):
        os.chown(path, -1, group_id, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o770 if path.name == REVISION_FOLDER else 0o750 if path.is_dir() else 0o640)


def _read_bounded(stream: IO[bytes], deadline: float, bytes_max: int) -> bytes:
    answer = bytearray()
    descriptor = stream.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while True:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ChildFailed("timeout", "no answer in time")
        if not (chunk := os.read(descriptor, _READ_BYTES)):
            return bytes(answer)
        answer += chunk
        if len(answer) > bytes_max:
            raise ChildFailed("too_long", f"more than {bytes_max} bytes of answer")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child if it still runs. It cannot start processes, so its group is the child alone."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _report_missing(errors: IO[bytes]) -> None:
    """Log and count the protections that the launcher could not enable. A child that ended before its first line has
    opened no file.
    """
    errors.seek(0)
    line = errors.readline(LINE_BYTES_MAX)
    missing = missing_protections(line)
    for name in missing:
        metrics.UNPROTECTED_CHILDREN.labels(name).inc()
    if missing:
        _log.warning("validation child not fully confined", missing=missing, held=line.decode(errors="replace").strip())
