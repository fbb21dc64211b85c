"""Decodes a request's body into its wire type with strict JSON, so that an error names the field.

Litestar would parse first and convert leniently afterwards (``"60"`` would be accepted for 60).
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from msgspec import inspect

from control_plane import dollars
from core import strict_json
from core.errors import InvalidRequest, UnsupportedMedia

_DEPTH_MAX = 64
_SHAPES: Final = {
    r"^[a-z0-9][a-z0-9-]{0,62}(?!\n)$": "use lower-case letters, digits and '-', at most 63, and begin with no '-'",
    r"^[a-z0-9][a-z0-9_-]{0,62}(?!\n)$": "use the id or the name of a plan",
    r"^[0-9a-f]{64}(?!\n)$": "write 64 hexadecimal digits in lower case",
    r"^[^\x00-\x1f\x7f]+(?!\n)$": "leave out control characters",
    r"^ *[^\x00-\x20\x7f][^\x00-\x1f\x7f]*(?!\n)$": "write some words, and leave out control characters",
}
"""What the patterns of wire types ask for. In Python ``$`` also matches before a newline at the end."""

_PLAIN: Final = tuple(
    (re.compile(form), plain)
    for form, plain in (
        (r"Expected `(?:int|float|number)` >= (\S+)", "must be at least {}"),
        (r"Expected `(?:int|float|number)` <= (\S+)", "must be at most {}"),
        (r"Expected `(?:int|float|number)` > (\S+)", "must be more than {}"),
        (r"Expected `\w+` of length >= (\d+)", "must have a length of at least {}"),
        (r"Expected `\w+` of length <= (\d+)", "must have a length of at most {}"),
        (r"Expected `([a-z]+)`, got `([a-z]+)`", "must be {}, not {}"),
        (r"Expected `([a-z]+) \| null`, got `([a-z]+)`", "must be {} or null, not {}"),
    )
)
"""Forms of msgspec's messages, and the same in plain words."""

_WORDS: Final = {
    "int": "a whole number", "float": "a number with a fraction", "str": "a string", "bool": "true or false",
    "array": "a list", "object": "an object",
}  # fmt: skip


class StrictRequest(Request[Any, Any, State]):
    """A request whose ``data`` msgspec decodes in strict mode. NaN and Infinity are not JSON."""

    async def json(self) -> Any:
        content_type = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise UnsupportedMedia(
                f"content-type is {content_type!r}. Send application/json.",
                code="unsupported_media_type",
                param="content-type",
            )
        if (encoding := self.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            raise UnsupportedMedia(
                f"content-encoding is {encoding!r}. Send the JSON uncompressed.",
                code="encoding_not_allowed",
                param="content-encoding",
            )
        field = self.route_handler.parsed_data_field
        assert field is not None, "only handlers with a body read it"
        body = await self.body()
        has_dollars = b"_usd" in body
        if has_dollars:
            body = dollars.converted(body, field.annotation)
        try:
            decoded = msgspec.json.decode(body, type=field.annotation)
        except msgspec.ValidationError as error:
            problem = invalid_field(error, field.annotation)
            raise (dollars.renamed(problem, await self.body()) if has_dollars else problem) from error
        except msgspec.DecodeError as error:
            raise _not_json(await self.body(), error) from error
        except (RecursionError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                "The body is not valid JSON: nested too deeply or not UTF-8.", code="invalid_json"
            ) from error
        if b"\\u0000" in body:
            self.scope["state"]["nul_at"] = place_of_nul(body)  # for the case that Postgres has to store it
        return decoded


def place_of_nul(body: bytes) -> str | None:
    """The path of the first text of a JSON body with a NUL, which Postgres does not store; None without one."""
    return _place_of_nul(msgspec.json.decode(body), "")


def _place_of_nul(value: Any, path: str) -> str | None:  # decoded JSON
    """The path of the first text with a NUL; None without one."""
    if isinstance(value, str):
        return path if "\0" in value else None
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        if any("\0" in name for name in value):
            return path
        parts = ((f"{path}.{name}" if path else name, each) for name, each in value.items())
    elif isinstance(value, list):
        parts = ((f"{path}[{place}]", each) for place, each in enumerate(value))
    return next((found for where, each in parts if (found := _place_of_nul(each, where)) is not None), None)


def refuse_unknown_parameters(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard. A misspelled parameter would else be ignored, as would all but one value of one that is given twice, and
    the answer would look right. No value has a NUL, which Postgres does not store. Raises InvalidRequest.
    """
    if not connection.query_params or connection.scope.get("method") == "OPTIONS":
        return
    fields = handler.parsed_fn_signature.parameters.items()
    known = {name: field for name, field in fields if isinstance(field.kwarg_definition, QueryParameter)}
    if unknown := sorted(connection.query_params.keys() - known):
        fix = f"Use {', '.join(sorted(known))}." if known else "This route has none."
        raise InvalidRequest(
            f"{unknown[0]}: unknown query parameter. {fix}", code="unknown_parameter", param=unknown[0]
        )
    for name, field in known.items():
        if len(connection.query_params.getall(name, [])) > 1 and not field.is_non_string_sequence:
            raise InvalidRequest(f"{name}: given more than once. Send it once.", code="repeated_parameter", param=name)
    for name, value in connection.query_params.multi_items():
        if "\x00" in str(value):
            raise InvalidRequest(f"{name}: has a NUL character; leave it out.", code="nul_character", param=name)


def _not_json(body: bytes, error: msgspec.DecodeError) -> InvalidRequest:
    """The decoder names the byte; the slower parser also names the field where it can."""
    reason, key = str(error), None
    try:
        strict_json.parse(body, depth_max=_DEPTH_MAX)
    except strict_json.JsonRefused as refused:
        reason, key = str(refused).removeprefix("not JSON: "), refused.key
    return InvalidRequest(f"The body is not valid JSON: {reason}.", code="invalid_json", param=key)


def invalid_field(error: msgspec.ValidationError, body_type: Any = None) -> InvalidRequest:
    """The decoder's error, such as ``Expected `int`, got `str` - at `$.limits.kv_pages```, in plain words and with its
    ``param``. With ``body_type``, the type of the body, the fix names the fields and values that there are.
    """
    message, _, path = str(error).partition(" - at `")
    param = path.rstrip("`").removeprefix("$").removeprefix(".") or None
    if message.startswith("Object contains unknown field `"):
        name = message.split("`")[1]
        known = ", ".join(_fields(_type_at(body_type, param)))
        fix = f"Use {known}." if known else "Remove it."
        param = f"{param}.{name}" if param else name
        return InvalidRequest(f"{param}: unknown field. {fix}", code="unknown_field", param=param)
    if message.startswith("Object missing required field `"):
        name = message.split("`")[1]
        param = f"{param}.{name}" if param else name
        return InvalidRequest(f"{param}: this field is required.", code="missing_field", param=param)
    for pattern, text in _SHAPES.items():
        if message.endswith(f"matching regex {pattern!r}"):
            return InvalidRequest(f"{param or 'body'}: {text}.", param=param)
    if message.startswith("Invalid enum value") and (values := _values(_type_at(body_type, param))):
        return InvalidRequest(f"{param}: must be one of {', '.join(values)}.", param=param)
    for form, plain in _PLAIN:
        if match := form.fullmatch(message):
            words = [_WORDS.get(each, each) for each in match.groups()]
            return InvalidRequest(f"{param or 'body'}: {plain.format(*words)}.", param=param)
    return InvalidRequest(f"{param or 'body'}: {message[0].lower()}{message[1:]}.", param=param)


def _type_at(body_type: Any, path: str | None) -> inspect.Type | None:  # the type of a body is any annotation
    """The type of the field at a path such as ``limits.kv_pages`` or ``files[0].path``; None where unknown."""
    found = None if body_type is None else _without_null(inspect.type_info(body_type))
    for name in re.findall(r"[^.\[\]]+|\.\.\.", path or ""):
        if isinstance(found, inspect.StructType):
            found = next((each.type for each in found.fields if each.encode_name == name), None)
        elif isinstance(found, inspect.ListType | inspect.VarTupleType):
            found = found.item_type
        else:
            return None
        found = found and _without_null(found)
    return found


def _without_null(found: inspect.Type) -> inspect.Type:
    while isinstance(found, inspect.Metadata | inspect.UnionType):
        if isinstance(found, inspect.Metadata):
            found = found.type
        else:
            found = next(each for each in found.types if not isinstance(each, inspect.NoneType | inspect.CustomType))
    return found


def _fields(found: inspect.Type | None) -> list[str]:
    return [each.encode_name for each in found.fields] if isinstance(found, inspect.StructType) else []


def _values(found: inspect.Type | None) -> list[str]:
    if isinstance(found, inspect.EnumType):
        return [str(each.value) for each in found.cls]
    return [str(each) for each in found.values] if isinstance(found, inspect.LiteralType) else []
