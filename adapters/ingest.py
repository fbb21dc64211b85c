"""Turns a tenant's uploaded files into a stored revision: download, verify, validate in the sandbox, store by digest.

The control plane's worker calls it outside any transaction. Idempotent: a crash leaves at most files without a
manifest, which are never read. The rules for adapters are in ``adapters.validation.validate``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from adapters import metrics
from adapters.base_model_spec import BaseModelSpec
from adapters.manifest import StoredFile
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import ObjectDamaged, ObjectMissing
from adapters.object_store.upload_store import upload_key
from adapters.report import ReportBuilder, UploadProblem, ValidationReport, rejected
from adapters.sandbox.child import REVISION_FOLDER, UPLOAD_FOLDER, ValidationRequest
from adapters.sandbox.parent import validate_confined
from adapters.sandbox.work_folder import work_folder
from adapters.settings import UploadSettings
from adapters.validation.bounds import UploadLimits
from adapters.validation.file_rules import REQUIRED_FILES, check_names
from adapters.validation.manifest_rules import find_impossible

_log = structlog.get_logger()
_UNTRUSTED: Final = "the files could not be normalized; save the adapter with a current PEFT and upload it again"


def ingest(
    store: RevisionStore,
    *,
    revision_id: str,
    files: Sequence[StoredFile],
    base: BaseModelSpec,
    known_bases: Mapping[str, str],
    limits: UploadLimits,
    settings: UploadSettings,
) -> ValidationReport:
    """Return the report on an upload. If it accepts, the revision is stored under ``verdict.digest``.

    ``known_bases`` has the id of the base model for every name of one, in lower case. Raises ``Unavailable`` when the
    object store fails; the caller retries the job, because this says nothing about the upload.
    """
    with metrics.INGEST_SECONDS.time():
        verdict = _ingest(store, revision_id, files, ValidationRequest(
            base=msgspec.structs.replace(base, tokenizer_json="", chat_template=""),
            known_bases=dict(known_bases),
            limits=limits,
            bounds=settings.bounds(),
        ), settings)  # fmt: skip
    metrics.INGESTED.labels("accepted" if verdict.accepted else "rejected").inc()
    return verdict


def _ingest(
    store: RevisionStore,
    revision_id: str,
    files: Sequence[StoredFile],
    request: ValidationRequest,
    settings: UploadSettings,
) -> ValidationReport:
    declared = check_declared(files, request.limits)
    if declared.problems:
        return declared
    with work_folder(settings.upload_work_dir) as work:
        (work / UPLOAD_FOLDER).mkdir()
        report = ReportBuilder()
        for file in files:
            if file.path in REQUIRED_FILES:
                _fetch(store, revision_id, file, work / UPLOAD_FOLDER, report)
        if report.count > 0:
            return report.build()
        verdict = validate_confined(work, request, settings)
        if verdict.manifest is not None and not verdict.problems:
            try:
                if (what := find_impossible(verdict.manifest, request.base, request.limits)) is not None:
                    _log.error("validation child's manifest is impossible", what=what, revision=revision_id)
                    return rejected(UploadProblem(code="validation_failed", message=_UNTRUSTED))
                store.put_revision(work / REVISION_FOLDER, verdict.manifest)
            except (ObjectDamaged, FileNotFoundError):  # the child's answer and its files differ: trust neither
                return rejected(UploadProblem(code="validation_failed", message=_UNTRUSTED))
        return msgspec.structs.replace(verdict, notes=(*declared.notes, *verdict.notes))


def check_declared(files: Sequence[StoredFile], limits: UploadLimits) -> ValidationReport:
    """Check the declaration alone: names and total size. The API calls this before it issues upload URLs."""
    report = ReportBuilder()
    check_names([file.path for file in files], report)
    if report.count == 0:
        for file in files:
            if file.size_bytes == 0:
                fix = "upload it again" if file.path in REQUIRED_FILES else "leave it out"
                report.refuse("file_empty", f"is empty; {fix}", file=file.path)
    total = sum(file.size_bytes for file in files)
    if total > limits.bytes_max:
        report.add(UploadProblem(code="upload_too_large", message=limits.too_large(total)))
    return report.build()


def _fetch(store: RevisionStore, revision_id: str, file: StoredFile, folder: Path, report: ReportBuilder) -> None:
    try:
        size = store.download(
            upload_key(revision_id, file.path), folder / file.path, bytes_max=file.size_bytes, sha256=file.sha256
        )
    except ObjectMissing:
        report.refuse(
            "artifact_missing", "was not uploaded; PUT it to its URL, then complete the upload again", file=file.path
        )
        return
    except ObjectDamaged:
        size = -1
    if size != file.size_bytes:
        fix = "create a new revision and upload the file unchanged"
        report.refuse(
            "checksum_mismatch", f"is not the file that was declared (size or SHA-256); {fix}", file=file.path
        )
