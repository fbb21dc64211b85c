"""The report of a validation, in the form that the API shows: problems with stable codes, and notes.

The rules that decide are in ``adapters.validation``.
"""

from typing import Final, Literal

import msgspec

from adapters.manifest import AdapterManifest
from core.strict_json import shorten

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
    """One reason for a rejection. ``where`` is the first field or tensor that has it, ``count`` how many have it. The
    message states the defect and the fix, then further places.
    """

    code: Code
    message: str
    file: str | None = None
    where: str | None = None
    count: int = 1


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
_PLACES_SHOWN: Final = 2


class _Cause(msgspec.Struct):
    """One problem while it is collected: its first form, and further places."""

    first: UploadProblem
    places: list[str]
    count: int = 1

    def problem(self) -> UploadProblem:
        """The problem with all its places counted and the first ones named."""
        if self.count == 1:
            return self.first
        shown = ", ".join(shorten(place).strip('"') for place in self.places)
        more = ", ..." if self.count - 1 > len(self.places) else ""
        text = f"{self.first.message}. The same is true of {self.count - 1} more: {shown}{more}"
        return msgspec.structs.replace(self.first, message=text, count=self.count)


class ReportBuilder:
    """Collects problems and notes. One cause is one problem, however many tensors have it; the first 50 are kept and
    the rest counted, so that the report stays readable.
    """

    def __init__(self) -> None:
        self._causes: dict[tuple[str, ...], _Cause] = {}
        self._notes: list[str] = []
        self._found = 0

    def refuse(
        self, code: Code, message: str, *, file: str, where: str | None = None, cause: str | None = None
    ) -> None:
        """Add a problem. ``message`` states the defect and the fix, and is shown after the file's name. Problems of one
        file and code whose messages differ only in ``where`` have one cause, or those with the same ``cause``.
        """
        if cause is None:
            cause = message.replace(where, "") if where else message
        problem = UploadProblem(code=code, message=f"{file}: {message}", file=file, where=where)
        self._add(problem, (code, file, cause))

    def add(self, problem: UploadProblem) -> None:
        """Add a problem that was found elsewhere."""
        self._add(problem, (problem.code, problem.message))

    def _add(self, problem: UploadProblem, key: tuple[str, ...]) -> None:
        self._found += 1
        cause = self._causes.setdefault(key, _Cause(first=problem, places=[]))
        if cause.first is not problem:
            cause.count += 1
            if problem.where is not None and len(cause.places) < _PLACES_SHOWN:
                cause.places.append(problem.where)

    def note(self, text: str) -> None:
        """Add a note, which does not reject the upload."""
        self._notes.append(text)

    @property
    def count(self) -> int:
        """How often ``refuse`` and ``add`` were called."""
        return self._found

    def build(self, manifest: AdapterManifest | None = None) -> ValidationReport:
        """Return the report. ``manifest`` is only allowed if there is no problem."""
        assert not (self.count and manifest), "a rejected upload has no manifest"
        problems = tuple(cause.problem() for cause in self._causes.values())
        left_out = len(problems) - _PROBLEMS_MAX
        more = (f"{left_out} more problems are not shown",) if left_out > 0 else ()
        return ValidationReport(problems=problems[:_PROBLEMS_MAX], notes=(*self._notes, *more), manifest=manifest)


def rejected(*problems: UploadProblem, notes: tuple[str, ...] = ()) -> ValidationReport:
    """Return a report that rejects the upload."""
    return ValidationReport(problems=problems, notes=notes)
