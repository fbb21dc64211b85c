"""Questions to the request log, each about one tenant: its requests in order of time or of duration, or one of them."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal

import msgspec

from adapters.object_store.s3 import Bucket
from control_plane.paging import Page, page_from
from control_plane.request_log import files
from control_plane.request_log.columns import CLICKHOUSE_STRUCTURE, COLUMNS
from control_plane.request_log.files import RequestLogFile
from control_plane.request_log.query_engine import QueryEngine
from control_plane.settings import RequestLogSettings
from core import clock
from core.contracts.request_log import LoggedOutcome, LoggedRequest
from core.errors import InvalidRequest, NotFound, Unavailable
from core.ids import ms_of_id
from core.periods import aware
from core.settings import S3Settings

RequestSort = Literal["newest", "slowest"]
_LATE: Final = timedelta(minutes=1)  # clocks of gateways and of Redis may differ
_SLOW_CURSOR: Final = re.compile(r"(\d{1,15})-(req_[0-9a-z]{26})")
_NEW_CURSOR: Final = re.compile(r"req_[0-9a-z]{26}")
_COPIES_MAX: Final = 4  # rows of one request
_NAMES: Final = ", ".join(column.name for column in COLUMNS)
_DECODER: Final = msgspec.json.Decoder(LoggedRequest)


class RequestFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which of a tenant's requests: those of a time range, by default the last day, and of these values."""

    start: datetime | None = None
    end: datetime | None = None
    model: str | None = None
    outcome: LoggedOutcome | None = None
    code: str | None = None
    whole_ms_min: int | None = None
    sort: RequestSort = "newest"

    def range(self) -> tuple[datetime, datetime]:
        """Start and end. Raises InvalidRequest for instants without an offset, and for an empty range."""
        end = clock.now() if self.end is None else aware(self.end, "end")
        start = end - timedelta(days=1) if self.start is None else aware(self.start, "start")
        if start >= end:
            raise InvalidRequest("start: it must be before end.", param="start")
        return start, end


class RequestLogReader:
    """Queries of one process."""

    def __init__(self, bucket: Bucket, s3: S3Settings, engine: QueryEngine, settings: RequestLogSettings) -> None:
        self._bucket = bucket
        self._engine = engine
        endpoint = s3.s3_endpoint or f"https://s3.{s3.s3_region}.amazonaws.com"
        self._root = f"{endpoint.rstrip('/')}/{s3.s3_bucket}/"
        self._credentials = [s3.s3_access_key, s3.s3_secret_key.get_secret_value()] if s3.s3_access_key else []
        self._settings = (
            f"SETTINGS max_execution_time = {settings.request_log_query_s}, "
            f"max_memory_usage = {settings.request_log_query_bytes_max}, glob_expansion_max_elements = 1000000, "
            "output_format_json_quote_64bit_integers = 0, date_time_output_format = 'iso'"
        )

    def page(self, tenant_id: str, wanted: RequestFilter, *, cursor: str | None, limit: int) -> Page[LoggedRequest]:
        """A page of the tenant's requests."""
        start, end = wanted.range()
        conditions = [
            f"tenant_id = {quoted(tenant_id)}",
            f"time >= fromUnixTimestamp64Milli({clock.to_ms(start)}, 'UTC')",
            f"time < fromUnixTimestamp64Milli({clock.to_ms(end)}, 'UTC')",
        ]
        for column, value in (("model", wanted.model), ("outcome", wanted.outcome), ("code", wanted.code)):
            if value is not None:
                conditions.append(f"{column} = {quoted(value)}")
        if wanted.whole_ms_min is not None:
            conditions.append(f"whole_ms >= {wanted.whole_ms_min}")
        slowest = wanted.sort == "slowest"
        if slowest:
            conditions.append("whole_ms IS NOT NULL")

        def read(*, after: str | None, limit: int) -> Sequence[LoggedRequest]:
            further = [] if after is None else [_after(after, slowest=slowest)]
            order = "whole_ms DESC, request_id DESC" if slowest else "request_id DESC, estimated"
            return self._select([*conditions, *further], order, start, end, limit=limit)

        return page_from(
            read, cursor=cursor, limit=limit,
            key=lambda row: f"{row.whole_ms}-{row.request_id}" if slowest else row.request_id,
        )  # fmt: skip

    def one(self, tenant_id: str, request_id: str) -> LoggedRequest:
        """One request of the tenant. Raises NotFound."""
        made_ms = ms_of_id(request_id)
        if made_ms is not None and request_id.startswith("req_"):
            made = clock.from_ms(made_ms)
            conditions = [f"tenant_id = {quoted(tenant_id)}", f"request_id = {quoted(request_id)}"]
            around = made - timedelta(hours=1), made + timedelta(hours=1)
            if found := self._select(conditions, "estimated", *around, limit=1):
                return found[0]
        raise NotFound(
            "Request not found. The log has it some seconds after its end, and for as many days as it is kept.",
            code="request_not_found",
        )

    def _select(
        self, conditions: Sequence[str], order: str, start: datetime, end: datetime, *, limit: int
    ) -> list[LoggedRequest]:
        """Rows of the files of this time: their ids first, so that few files are read in all their columns. A file that
        a merge has replaced meanwhile makes the first attempt fail.
        """
        for attempt in (1, 2):
            found = self._files(start, end)
            if not found:
                return []
            try:
                return self._rows(found, conditions, order, limit)
            except Unavailable:
                if attempt == 2 or set(self._files(start, end)) == set(found):
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _rows(
        self, found: Sequence[RequestLogFile], conditions: Sequence[str], order: str, limit: int
    ) -> list[LoggedRequest]:
        """Of the rows of one request, the first in this order, in which they are neighbors: Redis may have made two."""
        tenant = conditions[0]
        lines = self._engine.run(
            "SELECT request_id, _path FROM "  # noqa: S608
            f"(SELECT request_id, _path, whole_ms, estimated FROM {self._source(found)} "
            f"WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT {_COPIES_MAX * limit}) "
            f"ORDER BY {order} LIMIT 1 BY request_id LIMIT {limit} {self._settings} FORMAT TSVRaw"
        ).decode()
        if not lines:
            return []
        ids, paths = zip(*(line.split("\t") for line in lines.splitlines()), strict=True)
        holding = [file for file in found if any(path.endswith(file.key) for path in set(paths))]
        rows = self._engine.run(
            f"SELECT {_NAMES} FROM {self._source(holding)} WHERE {tenant} "  # noqa: S608
            f"AND request_id IN ({', '.join(map(quoted, ids))}) "
            f"ORDER BY {order} LIMIT 1 BY request_id {self._settings} FORMAT JSONEachRow"
        )
        return [_DECODER.decode(line) for line in rows.splitlines()]

    def _files(self, start: datetime, end: datetime) -> list[RequestLogFile]:
        """Files that may have rows of this time. An entry is never older than its rows, so older files have none."""
        first, last = _day(start), _day(end)
        least_ms = clock.to_ms(start - _LATE)
        return [
            file
            for file in files.counting(files.listed(self._bucket, first, last))
            if file.level or file.last.ms >= least_ms
        ]

    def _source(self, found: Sequence[RequestLogFile]) -> str:
        keys = [file.key for file in found]
        path = keys[0] if len(keys) == 1 else "{" + ",".join(keys) + "}"
        arguments = [self._root + path, *self._credentials, "Parquet"]
        return f"s3({', '.join(map(quoted, arguments))}, '{CLICKHOUSE_STRUCTURE}')"


def quoted(text: str) -> str:
    """A text as a literal of ClickHouse's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _after(cursor: str, *, slowest: bool) -> str:
    """The condition of the rows behind a cursor. Raises InvalidRequest for one of another order."""
    if slowest and (found := _SLOW_CURSOR.fullmatch(cursor)):
        return f"(whole_ms, request_id) < ({found[1]}, {quoted(found[2])})"
    if not slowest and _NEW_CURSOR.fullmatch(cursor):
        return f"request_id < {quoted(cursor)}"
    raise InvalidRequest(
        "cursor: it belongs to a list in another order; send the `sort` of the first page.",
        code="invalid_cursor",
        param="cursor",
    )


def _day(instant: datetime) -> date:
    return instant.astimezone(UTC).date()
