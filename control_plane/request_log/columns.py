"""The columns of the request log, as ClickHouse and as Parquet name their types. The fields of
``core.contracts.request_log.LoggedRequest`` decide them.
"""

from typing import Final, NamedTuple

from msgspec import inspect

from core.contracts.request_log import LoggedRequest

_TYPES: Final = {
    inspect.IntType: ("int64", "Int64"),
    inspect.BoolType: ("bool", "Bool"),
    inspect.DateTimeType: ("timestamp", "DateTime64(3, \\'UTC\\')"),  # quoted, within a quoted text
}


class Column(NamedTuple):
    """One column."""

    name: str
    parquet: str
    clickhouse: str


def _columns() -> list[Column]:
    info = inspect.type_info(LoggedRequest)
    assert isinstance(info, inspect.StructType), "it is a struct"
    return [_column(field) for field in info.fields]


def _column(field: inspect.Field) -> Column:
    kind = field.type.type if isinstance(field.type, inspect.Metadata) else field.type
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    first = next(each for each in kinds if not isinstance(each, inspect.NoneType))
    parquet, clickhouse = _TYPES.get(type(first), ("string", "String"))
    nullable = any(isinstance(each, inspect.NoneType) for each in kinds)
    return Column(field.encode_name, parquet, f"Nullable({clickhouse})" if nullable else clickhouse)


COLUMNS: Final = _columns()
CLICKHOUSE_STRUCTURE: Final = ", ".join(f"{column.name} {column.clickhouse}" for column in COLUMNS)
"""As ClickHouse's table function ``s3`` takes them, within quotes."""
