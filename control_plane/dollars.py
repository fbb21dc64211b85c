"""Dollars beside nanodollars and cents: requests may say ``base_fee_usd`` for ``base_fee_nanos``, ``amount_usd`` for
``amount_cents``, and ``input_usd_per_million`` for ``input_nanos``; answers say both.

The names are made by rule from those of the wire types, and the values convert exactly, by ``core.money``.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
from litestar import MediaType, Response
from msgspec import inspect

from core.errors import InvalidRequest
from core.money import NANOS_PER_CENT, NANOS_PER_DOLLAR, USD_PATTERN, format_plain_usd, units_of_usd

_PER_TOKEN: Final = frozenset({"input_nanos", "cached_input_nanos", "output_nanos", "unit_price_nanos"})
_MILLION: Final = 1_000_000
_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


class DollarName(NamedTuple):
    """The name of a field in dollars, and how many of its units are a dollar."""

    name: str
    units_per_dollar: int


def alias_of(field: str) -> DollarName | None:
    """The name in dollars of a field in nanodollars or cents; None for any other field."""
    if field in _PER_TOKEN:
        return DollarName(field.replace("_nanos", "_usd_per_million"), NANOS_PER_DOLLAR // _MILLION)
    if "_nanos" in field:
        return DollarName(field.replace("_nanos", "_usd"), NANOS_PER_DOLLAR)
    if "_cents" in field:
        return DollarName(field.replace("_cents", "_usd"), NANOS_PER_DOLLAR // NANOS_PER_CENT)
    return None


def converted(body: bytes, body_type: Any) -> bytes:  # any annotation
    """The body with every amount in nanodollars or cents. Raises InvalidRequest for one that is not exact. What is no
    JSON stays as it is, for the decoder to refuse.
    """
    try:
        given = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return body
    return _ENCODER.encode(_in_units(given, inspect.type_info(body_type), ""))


def renamed(problem: InvalidRequest, body: bytes) -> InvalidRequest:
    """The problem by the name in dollars, where the body has it: its bounds are in the other unit."""
    where, _, field = (problem.param or "").rpartition(".")
    alias = alias_of(field)
    if alias is None or f'"{alias.name}"'.encode() not in body:
        return problem
    param = f"{where}.{alias.name}" if where else alias.name
    return InvalidRequest(f"{param}: as {problem.message}", code="invalid_dollars", param=param)


def answered(response: Response[Any]) -> Response[Any]:
    """Litestar's hook after a handler: adds dollars to an answer in JSON. A stored answer is bytes."""
    content = response.content
    if isinstance(content, msgspec.Struct):
        response.content = with_dollars(msgspec.to_builtins(content))
    elif isinstance(content, bytes) and response.media_type == MediaType.JSON:
        response.content = with_dollars(msgspec.json.decode(content))
    return response


def with_dollars(value: Any) -> Any:  # builtins, as JSON has them
    """The value with dollars beside each amount in nanodollars or cents, as text."""
    if isinstance(value, list | tuple):
        return [with_dollars(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    shown = {field: with_dollars(given) for field, given in value.items()}
    for field, alias in _aliases(value):
        if isinstance(given := value[field], list | int | None):
            shown[alias.name] = _in_dollars(given, alias.units_per_dollar)
    return shown


def _in_dollars(given: list[int] | int | None, units_per_dollar: int) -> Any:
    if isinstance(given, list):
        return [_in_dollars(each, units_per_dollar) for each in given]
    return None if given is None else format_plain_usd(given * (NANOS_PER_DOLLAR // units_per_dollar))


def describe(schemas: dict[str, Any], *, of_requests: bool) -> None:  # of an OpenAPI document
    """Add the names in dollars to types. In a request, one of both names is enough where a field is required."""
    for schema in schemas.values():
        properties = schema.get("properties", {})
        for field, alias in list(_aliases(properties)):
            amount: dict[str, Any] = {"type": ["string", "null"]}
            if of_requests:
                amount = {"anyOf": [{"type": "string", "pattern": USD_PATTERN}, {"type": "number"}]}
            is_list = properties[field].get("type") == "array"
            per = " a million" if alias.name.endswith("_per_million") else ""
            properties[alias.name] = {"type": "array", "items": amount} if is_list else amount
            properties[alias.name]["description"] = f"The same as {field} in US dollars{per}, exact."
            if of_requests and field in schema.get("required", ()):
                schema["required"].remove(field)
                either = {"anyOf": [{"required": [field]}, {"required": [alias.name]}]}
                schema.setdefault("allOf", []).append(either)


def _in_units(value: Any, expected: inspect.Type | None, path: str) -> Any:
    found = _plain(expected)
    if isinstance(found, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        return [_in_units(each, found.item_type, f"{path}[{place}]") for place, each in enumerate(value)]
    if not (isinstance(found, inspect.StructType) and isinstance(value, dict)):
        return value
    fields = {each.encode_name: each.type for each in found.fields}
    aliases = {alias.name: (field, alias.units_per_dollar) for field, alias in _aliases(fields)}
    made = {}
    for name, given in value.items():
        where = f"{path}.{name}" if path else name
        if name in fields or name not in aliases:
            made[name] = _in_units(given, fields.get(name), where)
            continue
        field, units = aliases[name]
        made[field] = _units(given, units, where)
        if field in value and value[field] != made[field]:
            raise InvalidRequest(
                f"{where}: is not the same as {field}, {value[field]}. Give one of them.",
                code="invalid_dollars",
                param=where,
            )
    return made


def _aliases(fields: Mapping[str, Any]) -> Iterator[tuple[str, DollarName]]:
    for field in fields:
        alias = alias_of(field)
        if alias is not None and alias.name not in fields:
            yield field, alias


def _units(given: Any, units_per_dollar: int, where: str) -> Any:
    if given is None:
        return None
    if isinstance(given, list):
        return [_units(each, units_per_dollar, f"{where}[{place}]") for place, each in enumerate(given)]
    units = None if isinstance(given, bool | dict) else units_of_usd(str(given), units_per_dollar)
    if units is None:
        raise InvalidRequest(
            f'{where}: {str(given)[:40]!r} is not exact. Write dollars as "0.15", in steps of '
            f"{format_plain_usd(NANOS_PER_DOLLAR // units_per_dollar)}.",
            code="invalid_dollars",
            param=where,
        )
    return units


def _plain(expected: inspect.Type | None) -> inspect.Type | None:
    found = expected
    while isinstance(found, inspect.Metadata | inspect.UnionType):
        if isinstance(found, inspect.Metadata):
            found = found.type
        else:
            found = next(
                (
                    each
                    for each in found.types
                    if isinstance(each, inspect.StructType | inspect.ListType | inspect.VarTupleType | inspect.Metadata)
                ),
                None,
            )
    return found
