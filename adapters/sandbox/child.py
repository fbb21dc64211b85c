"""The child that reads untrusted files: ``python -m adapters.sandbox.child <work folder>``, run by
``adapters.sandbox.parent``.

Reads ``request.json`` and ``upload/`` in the work folder, writes an accepted adapter into ``revision/`` and the
validation report as JSON to standard output. Imports nothing heavy, because it starts once per upload; its parent
imports it too, for the form of the request.
"""

import sys
from pathlib import Path
from typing import Final

import msgspec

from adapters.base_model_spec import BaseModelSpec
from adapters.report import ReportBuilder, ValidationReport
from adapters.validation.bounds import PlatformBounds, UploadLimits

REQUEST_FILE: Final = "request.json"
UPLOAD_FOLDER: Final = "upload"
REVISION_FOLDER: Final = "revision"


class ValidationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The child's input. The base model comes without its tokenizer, which no rule needs."""

    base: BaseModelSpec
    known_bases: dict[str, str]
    limits: UploadLimits
    bounds: PlatformBounds


def validate_and_normalize(work: Path) -> ValidationReport:
    """The report on ``work``'s upload. If it accepts, ``revision/`` holds the re-serialized adapter."""
    # Late: numpy, which the parent does not need.
    from adapters.validation.normalize import normalize
    from adapters.validation.validate import validate

    request = msgspec.json.decode((work / REQUEST_FILE).read_bytes(), type=ValidationRequest)
    report = ReportBuilder()
    accepted = validate(
        work / UPLOAD_FOLDER,
        base=request.base,
        known_bases=request.known_bases,
        limits=request.limits,
        bounds=request.bounds,
        report=report,
    )
    if accepted is None:
        return report.build()
    return report.build(normalize(accepted, work / UPLOAD_FOLDER, work / REVISION_FOLDER, request.base))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(validate_and_normalize(Path(sys.argv[1]))))
