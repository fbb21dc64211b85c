"""Rows of the request log: read from entries of the stream, and written as Parquet."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from control_plane.request_log.columns import COLUMNS
from core import clock
from core.contracts.request_log import LoggedRequest, RequestDetails
from core.contracts.usage import UsageEvent

_ROW_GROUP_ROWS: Final = 32_768
_TYPES: Final = {
    "int64": pa.int64(), "bool": pa.bool_(), "string": pa.string(), "timestamp": pa.timestamp("ms", tz="UTC"),
}  # fmt: skip
_SCHEMA: Final = pa.schema([(column.name, _TYPES[column.parquet]) for column in COLUMNS])
_ROWS: Final = msgspec.json.Decoder(list[LoggedRequest])
_EVENT: Final = msgspec.json.Decoder(UsageEvent)
_DETAILS: Final = msgspec.json.Decoder(RequestDetails)


def rows_of(entry: Mapping[bytes, bytes]) -> list[LoggedRequest]:
    """The rows of one entry of the stream: a served request, or a batch of refusals. Raises msgspec.MsgspecError or
    UnicodeDecodeError.
    """
    if (refusals := entry.get(b"refusals")) is not None:
        return _ROWS.decode(refusals)
    return [served_row(_EVENT.decode(entry.get(b"event", b"")), _DETAILS.decode(entry.get(b"details", b"{}")))]


def served_row(event: UsageEvent, details: RequestDetails) -> LoggedRequest:
    """The row of a request that a replica served. Of an estimate, no duration is known that is the whole one."""
    return LoggedRequest(
        request_id=event.request_id,
        time=clock.from_ms(event.settled_at_ms - event.duration_ms),
        outcome=event.outcome,
        tenant_id=event.tenant_id,
        key_id=event.key_id,
        model=details.model,
        base_model=event.base_model,
        adapter_id=event.adapter_id,
        revision_id=event.revision_id,
        rank_class=event.rank_class,
        pool=details.pool,
        pool_revision=details.pool_revision,
        replica_id=event.replica_id,
        service_tier=event.service_tier,
        adapter_tier=event.adapter_tier,
        prompt_tokens=event.input_tokens,
        cached_tokens=event.cached_tokens,
        completion_tokens=event.output_tokens,
        wait_ms=details.wait_ms,
        load_ms=None if event.adapter_tier is None else event.adapter_load_ms,
        prefill_ms=details.prefill_ms,
        ttft_ms=event.first_token_ms,
        itl_p95_ms=details.itl_p95_ms,
        whole_ms=None if event.estimated else event.duration_ms,
        finish_reason=details.finish_reason,
        code=details.code,
        price_nanos=details.price_nanos,
        estimated=event.estimated,
    )


def to_parquet(rows: Iterable[LoggedRequest]) -> bytes:
    """A file of these rows."""
    ordered = list(rows)
    return write(in_schema({name: [getattr(row, name) for row in ordered] for name in _SCHEMA.names}, len(ordered)))


def in_schema(columns: Mapping[str, Any], count: int) -> pa.Table:
    """These columns in the log's schema; one that is not given is null."""
    return pa.table(
        {each.name: columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in _SCHEMA},
        schema=_SCHEMA,
    )


def write(table: pa.Table) -> bytes:
    """A file of these rows, those of a tenant side by side, so that a query for one tenant reads few row groups."""
    out = io.BytesIO()
    ordered = table.sort_by([("tenant_id", "ascending"), ("request_id", "ascending")])
    pq.write_table(ordered, out, compression="zstd", row_group_size=_ROW_GROUP_ROWS)
    return out.getvalue()


def read(files: Sequence[bytes]) -> pa.Table:
    """The rows of these files. A column that an older file lacks is null."""
    tables = [pq.read_table(io.BytesIO(file)) for file in files]
    whole = pa.concat_tables(tables, promote_options="default")
    return in_schema({name: whole[name] for name in whole.column_names}, whole.num_rows)
