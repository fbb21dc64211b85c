"""The names of the request log's files in S3, and which of them count. Nothing here reads one.

The writer names a file by the first and the last entry of its batch, so a batch that is written twice is one file. A
merged file is named by the first entries of the first and the last file that it replaces. It replaces the files of a
lower level whose first entry lies in that range: they do not count, and are deleted later.
"""

import re
from collections.abc import Iterable
from datetime import date
from os.path import commonprefix
from typing import Final, NamedTuple

from adapters.object_store.s3 import Bucket

ROOT: Final = "requests/"
_DAYS: Final = f"{ROOT}day="
_ERASURES: Final = f"{ROOT}erase/"
_NAME: Final = re.compile(
    rf"{_DAYS}(\d{{4}}-\d{{2}}-\d{{2}})/(\d{{1,15}})-(\d{{1,10}})_(\d{{1,15}})-(\d{{1,10}})(?:\.merged(\d{{1,3}}))?\.parquet"
)


class EntryId(NamedTuple):
    """The id of an entry of the stream."""

    ms: int
    sequence: int

    @classmethod
    def of(cls, text: bytes) -> "EntryId":
        """The id that Redis writes as ``<ms>-<sequence>``."""
        ms, _, sequence = text.partition(b"-")
        return cls(int(ms), int(sequence or 0))


class RequestLogFile(NamedTuple):
    """One file: the rows of one day, by the time of the request. ``level`` counts merges."""

    day: str
    first: EntryId
    last: EntryId
    level: int = 0
    size_bytes: int = 0

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        merged = f".merged{self.level}" if self.level else ""
        return f"{_DAYS}{self.day}/{_text(self.first)}_{_text(self.last)}{merged}.parquet"


def _text(entry: EntryId) -> str:
    return f"{entry.ms}-{entry.sequence}"


def listed(bucket: Bucket, first: date, last: date) -> list[RequestLogFile]:
    """Every file of these days, those that do not count included."""
    files = []
    # What the days have in common, character by character: a query of one day must not list all days.
    days = commonprefix([first.isoformat(), last.isoformat()])  # noqa: RUF071 - a prefix of keys and no path
    for stored in bucket.objects(_DAYS + days):
        if (found := _NAME.fullmatch(stored.key)) is not None and first.isoformat() <= found[1] <= last.isoformat():
            first_id, last_id = EntryId(int(found[2]), int(found[3])), EntryId(int(found[4]), int(found[5]))
            files.append(RequestLogFile(found[1], first_id, last_id, int(found[6] or 0), stored.size_bytes))
    return files


def counting(files: Iterable[RequestLogFile]) -> list[RequestLogFile]:
    """The files that count, by day and first entry. Pure."""
    kept: list[RequestLogFile] = []
    cover: RequestLogFile | None = None
    for file in sorted(files, key=lambda each: (each.day, each.first, -each.level)):
        if cover is not None and cover.day == file.day and file.first <= cover.last and file.level < cover.level:
            continue
        kept.append(file)
        if file.level:
            cover = file
    return kept


def runs_to_merge(
    files: Iterable[RequestLogFile], *, before: EntryId, files_min: int, bytes_max: int
) -> list[list[RequestLogFile]]:
    """Neighbors among the files that count, to be merged into one of at most ``bytes_max`` each: at least ``files_min``
    of them, or enough to fill half of it. All entries below ``before`` must have been written: a file that came later
    and began within the range of a merged one would not count. Pure.
    """
    runs: list[list[RequestLogFile]] = []
    run: list[RequestLogFile] = []

    def end() -> None:
        if len(run) >= files_min or (len(run) > 1 and sum(each.size_bytes for each in run) >= bytes_max // 2):
            runs.append(list(run))
        run.clear()

    for file in counting(each for each in files if each.first < before and each.last < before):
        if run and (file.day != run[-1].day or sum(each.size_bytes for each in run) + file.size_bytes > bytes_max):
            end()
        run.append(file)
    end()
    return runs


def merged(run: list[RequestLogFile]) -> RequestLogFile:
    """The file that replaces a run of neighbors."""
    last = run[-1].last if run[-1].level else run[-1].first
    return RequestLogFile(run[0].day, run[0].first, last, max(each.level for each in run) + 1)


def request_erasure(bucket: Bucket, tenant_id: str) -> None:
    """Have the worker remove all rows of a tenant that exist now. Idempotent."""
    bucket.put(_ERASURES + tenant_id, b"erase")


def requested_erasures(bucket: Bucket) -> dict[str, int]:
    """The tenants whose rows are to be removed, each with the Unix millisecond of the request."""
    return {
        each.key.removeprefix(_ERASURES): int(each.modified_at.timestamp() * 1000) for each in bucket.objects(_ERASURES)
    }


def finish_erasure(bucket: Bucket, tenant_id: str) -> None:
    """No row of the tenant is left."""
    bucket.delete([_ERASURES + tenant_id])
