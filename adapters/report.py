"""The report of a validation, in the form that the API shows: problems with stable codes, and notes.

The rules that decide are in ``adapters.validation``.
"""

from typing import Final, Literal

import msgspec

from adapters.manifest import AdapterManifest

Code = Literal[
    "adapter_type_not_supported",
    "archive_not_allowed",
    "artifact_missing",
    "base_model_mismatch",
    "checksum_mismatch",
    "config_field_not_allowed",
    "config_invalid",
    "config_too_large",
    "dtype_not_allowed",
    "file_empty",
    "file_missing",
    "file_not_allowed",
    "format_not_allowed",
    "header_invalid",
    "header_too_large",
    "header_truncated",
    "module_not_allowed",
    "module_unknown",
    "offsets_invalid",
    "rank_mismatch",
    "rank_too_large",
    "shape_mismatch",
    "tensor_missing",
    "tensor_name_invalid",
    "too_many_tensors",
    "upload_too_large",
    "validation_failed",
    "validation_timeout",
    "weights_not_finite",
    "weights_out_of_range",
]


class UploadProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One reason for a rejection. ``where`` is a field or a tensor's name; the message ends with the fix."""

    code: Code
    message: str
    file: str | None = None
    where: str | None = None


class FileRejected(Exception):
    """Raised when a file cannot be read further because of a problem."""

    def __init__(self, problem: UploadProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class ValidationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one upload. It is accepted exactly if there is a manifest and no problem."""

    problems: tuple[UploadProblem, ...] = ()
    notes: tuple[str, ...] = ()
    manifest: AdapterManifest | None = None

    @property
    def accepted(self) -> bool:
        """Whether the upload became an adapter."""
        return self.manifest is not None and not self.problems

    @property
    def digest(self) -> str | None:
        """The revision's digest if the upload is accepted, otherwise None."""
        return self.manifest.digest if self.manifest is not None and not self.problems else None


_PROBLEMS_MAX: Final = 50


class ReportBuilder:
    """Collects problems and notes. Keeps the first 50 problems and counts the rest, so that it stays readable."""

    def __init__(self) -> None:
        self._problems: list[UploadProblem] = []
        self._notes: list[str] = []
        self._left_out = 0

    def refuse(self, code: Code, message: str, *, file: str, where: str | None = None) -> None:
        """Add a problem. ``message`` states the defect and the fix, and is shown after the file's name."""
        self.add(UploadProblem(code=code, message=f"{file}: {message}", file=file, where=where))

    def add(self, problem: UploadProblem) -> None:
        """Add a problem that was found elsewhere."""
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(problem)
        else:
            self._left_out += 1

    def note(self, text: str) -> None:
        """Add a note, which does not reject the upload."""
        self._notes.append(text)

    @property
    def count(self) -> int:
        """Problems found so far."""
        return len(self._problems) + self._left_out

    def build(self, manifest: AdapterManifest | None = None) -> ValidationReport:
        """Return the report. ``manifest`` is only allowed if there is no problem."""
        assert not (self.count and manifest), "a rejected upload has no manifest"
        more = (f"{self._left_out} more problems are not shown",) if self._left_out else ()
        return ValidationReport(problems=tuple(self._problems), notes=(*self._notes, *more), manifest=manifest)


def rejected(*problems: UploadProblem, notes: tuple[str, ...] = ()) -> ValidationReport:
    """Return a report that rejects the upload."""
    return ValidationReport(problems=problems, notes=notes)
