"""Checks an announced upload before any file is sent: the names, number and sizes of its files. Pure."""

from collections.abc import Sequence

from adapters.ingest import check_declared
from adapters.manifest import StoredFile
from adapters.validation.bounds import UploadLimits
from core.contracts.grants import Limits
from core.errors import AppError, InvalidRequest, TooLarge, UnsupportedMedia


class FileUpload(StoredFile, frozen=True, kw_only=True):
    """An announced file. A file with ``part_bytes`` is uploaded in parts; ``s3_upload_id`` is the store's id of the
    open multipart upload.
    """

    part_bytes: int | None
    s3_upload_id: str | None


def require_allowed(files: Sequence[StoredFile], *, files_max: int, limits: UploadLimits) -> None:
    """Raise for the first problem of the announced files: InvalidRequest or UnsupportedMedia naming the file, TooLarge
    naming the plan's limit.
    """
    if len(files) > files_max:
        raise InvalidRequest(f"files: this revision has {len(files)} files, the limit is {files_max}.", param="files")
    for problem in check_declared(files, limits).problems:
        raise _refusal(problem.code)(problem.message, code=problem.code, param=problem.file or "files")


def upload_limits(limits: Limits, plan: str) -> UploadLimits:
    """A plan's limits of one upload as the type of ``adapters``."""
    return UploadLimits(rank_max=limits.adapter_rank, bytes_max=limits.adapter_bytes, plan_name=plan)


def _refusal(code: str) -> type[AppError]:
    match code:
        case "format_not_allowed" | "archive_not_allowed":
            return UnsupportedMedia
        case "upload_too_large":
            return TooLarge
        case _:
            return InvalidRequest
