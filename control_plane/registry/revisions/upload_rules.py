"""What can be refused of an upload before a byte of it is sent: its files' names, number and sizes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from adapters.ingest import DeclaredFile, judge_declared
from adapters.validation.validate import UploadLimits
from control_plane.registry.schemas import AnnouncedFile
from core.contracts.grants import Limits
from core.errors import AppError, InvalidRequest, TooLarge, UnsupportedMedia


@dataclass(frozen=True, kw_only=True)
class FileUpload:
    """A file that was announced. One with ``part_bytes`` comes in parts; ``s3_upload_id`` is the store's name for that
    while it is open.
    """

    path: str
    size_bytes: int
    sha256: str
    part_bytes: int | None
    s3_upload_id: str | None


def require_allowed(files: Sequence[AnnouncedFile], *, files_max: int, limits: UploadLimits) -> None:
    """Raise for the first thing that is wrong with the announced files: 400 or 415 naming the file, 413 with the
    plan's number of bytes.
    """
    if len(files) > files_max:
        raise InvalidRequest(f"files: {len(files)} files; a revision may have {files_max}.", param="files")
    named = [DeclaredFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256) for file in files]
    for problem in judge_declared(named, limits).problems:
        raise _refusal(problem.code)(problem.message, code=problem.code, param=problem.file or "files")


def declared_files(files: Sequence[FileUpload]) -> tuple[DeclaredFile, ...]:
    """The announced files in the words of ``adapters``."""
    return tuple(DeclaredFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256) for file in files)


def upload_limits(limits: Limits, plan: str) -> UploadLimits:
    """What a plan allows of one upload, in the words of ``adapters``."""
    return UploadLimits(rank_max=limits.adapter_rank, bytes_max=limits.adapter_bytes, plan_name=plan)


def _refusal(code: str) -> type[AppError]:
    match code:
        case "format_not_allowed" | "archive_not_allowed":
            return UnsupportedMedia
        case "upload_too_large":
            return TooLarge
        case _:
            return InvalidRequest
