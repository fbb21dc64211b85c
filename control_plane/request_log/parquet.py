"""Files of the request log as Parquet. A process imports this when it writes or reads the first one: pyarrow takes
50 MB of memory, which a worker without anything to log does not need.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from control_plane.request_log.columns import COLUMNS
from core.contracts.request_log import LoggedRequest

_ROW_GROUP_ROWS: Final = 32_768
_TYPES: Final = {
    "int64": pa.int64(), "bool": pa.bool_(), "string": pa.string(), "timestamp": pa.timestamp("ms", tz="UTC"),
}  # fmt: skip
_SCHEMA: Final = pa.schema([(column.name, _TYPES[column.parquet]) for column in COLUMNS])


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


def without_tenants(table: pa.Table, tenant_ids: Sequence[str]) -> pa.Table:
    """The rows of all others."""
    return table.filter(pc.invert(pc.is_in(table["tenant_id"], value_set=pa.array(tenant_ids, pa.string()))))
