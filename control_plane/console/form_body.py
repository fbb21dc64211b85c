"""Makes the JSON body of an API call from the fields of an HTML form.

A field is named by its path in the body and the kind of its value: ``name``, ``limits.kv_pages:int``, ``scopes:list``.
The route itself checks the values, so a wrong hint only gets a clear refusal.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from core.errors import InvalidRequest

_INTEGER: Final = re.compile(r"[+-]?\d{1,18}")
_FIELD: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_-]+){0,3}(?::(int|bool|list|lines|json|null))?")


def body_of(fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The body. An empty field is left out; ``:null`` says null where it is empty. Raises InvalidRequest."""
    body: dict[str, Any] = {}
    for name, given in fields:
        if not (match := _FIELD.fullmatch(name)):
            raise InvalidRequest(f"{name[:60]!r} is not a field of this form. Reload the page.", code="unknown_field")
        path, kind = name.partition(":")[0], match[1]
        text = given.replace("\r\n", "\n")
        if kind == "list":  # one field for each chosen value
            _at(body, path).setdefault(path.rpartition(".")[2], []).append(text)
        elif text.strip():
            _at(body, path)[path.rpartition(".")[2]] = _value(path, kind, text)
        elif kind == "null":
            _at(body, path)[path.rpartition(".")[2]] = None
    return body


def _at(body: dict[str, Any], path: str) -> dict[str, Any]:
    """The object that holds the field."""
    found = body
    for name in path.split(".")[:-1]:
        inner = found.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidRequest(f"{path}: given twice. Reload the page.", code="unknown_field", param=path)
        found = inner
    return found


def _value(path: str, kind: str | None, text: str) -> Any:  # JSON of the kind
    match kind:
        case "int":
            plain = text.strip().replace(",", "").replace("_", "").replace(" ", "")
            return int(plain) if _INTEGER.fullmatch(plain) else text  # the route says what is wrong with a text
        case "bool":
            return {"true": True, "false": False}.get(text, text)
        case "lines":
            return [line.strip() for line in re.split(r"[\n,]", text) if line.strip()]
        case "json":
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidRequest(f"{path}: this is not JSON: {error}.", code="invalid_json", param=path) from error
    return text.strip()


def typed(fields: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """What was typed, by the name of the field without its kind, to show a refused form again."""
    kept: dict[str, list[str]] = {}
    for name, given in fields:
        kept.setdefault(name.partition(":")[0], []).append(given)
    return kept
