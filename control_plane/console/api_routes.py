"""What the console knows of the API's routes, read from their handlers: which scope a route asks for, and the fields
of the bodies that changes take. So a form asks for what its route accepts, in the words of the reference.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from msgspec import inspect

from control_plane import dollars

Kind = Literal["text", "int", "usd", "bool", "choice", "list", "lines", "json", "time"]
_HINTS: Final = {"int": ":int", "bool": ":bool", "list": ":list", "lines": ":lines", "json": ":json"}
_KINDS: Final[tuple[tuple[tuple[type, ...], Kind], ...]] = (
    ((inspect.BoolType,), "bool"),
    ((inspect.IntType,), "int"),
    ((inspect.DateTimeType, inspect.DateType), "time"),
    ((inspect.StrType,), "text"),
)
_WORDS: Final = {"kv": "KV", "usd": "", "id": "id", "gpu": "GPU", "url": "URL", "ppm": "millionths"}


@dataclass(frozen=True, kw_only=True)
class FormField:
    """One field. ``path`` is its place in the body, ``name`` the same with the kind's hint for ``form_body``."""

    path: str
    kind: Kind
    required: bool
    description: str
    choices: tuple[str, ...] = ()
    default: Any = None
    length_max: int | None = None

    @property
    def name(self) -> str:
        """The name of the input."""
        return self.path + _HINTS.get(self.kind, "")

    @property
    def label(self) -> str:
        """The last part of the path, in words."""
        words = [_WORDS.get(word, word) for word in self.path.rpartition(".")[2].split("_")]
        text = " ".join(word for word in words if word)
        return (text[:1].upper() + text[1:]) + (" (US$)" if self.kind == "usd" else "")


@dataclass(frozen=True, kw_only=True)
class ApiChange:
    """One route of the API that changes something."""

    name: str
    method: str
    path: str
    fields: tuple[FormField, ...] = field(default=())

    def path_for(self, names: Mapping[str, str]) -> str:
        """The path with its parameters filled in."""
        path = self.path
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        return path


class ApiRoutes:
    """The routes of the application that ``app`` returns."""

    def __init__(self, app: Callable[[], Litestar]) -> None:
        self._app = app

    @cached_property
    def operations(self) -> Mapping[str, ApiChange]:
        """Changes by the names of their handlers. Where a tenant and an admin have one of the same name, the admin's
        has ``_as_admin`` added, as in the OpenAPI document.
        """
        found = {}
        for path, handler in self._handlers():
            for method in sorted(handler.http_methods - {"GET", "HEAD", "OPTIONS"}):
                shared = "/admin/" in path and "scope" in handler.opt
                name = f"{handler.handler_name}_as_admin" if shared else handler.handler_name
                found[name] = ApiChange(name=name, method=method, path=path, fields=_fields_of(handler))
        return found

    @cached_property
    def scopes(self) -> Mapping[str, str | None]:
        """The scope that reading a path of a tenant asks for; None where every role may."""
        return {path: handler.opt["scope"] for path, handler in self._handlers() if _reads_tenant(handler)}

    def _handlers(self) -> Iterator[tuple[str, HTTPRouteHandler]]:
        for route in self._app().routes:
            if isinstance(route, HTTPRoute) and route.path.startswith(("/api/v1/", "/v1/")):
                for handler in route.route_handlers:
                    yield route.path_format, handler


def _reads_tenant(handler: HTTPRouteHandler) -> bool:
    return "GET" in handler.http_methods and "scope" in handler.opt


def _fields_of(handler: HTTPRouteHandler) -> tuple[FormField, ...]:
    body = handler.parsed_data_field
    if body is None or not (isinstance(body.annotation, type) and issubclass(body.annotation, msgspec.Struct)):
        return ()
    return tuple(_of_struct(inspect.type_info(body.annotation), ""))


def _of_struct(found: inspect.Type, prefix: str) -> Iterator[FormField]:
    assert isinstance(found, inspect.StructType), "bodies are structs"
    for each in found.fields:
        plain, description, length_max = _plain(each.type)
        path = prefix + each.encode_name
        if isinstance(plain, inspect.StructType) and not prefix:
            yield from _of_struct(plain, f"{path}.")
            continue
        kind, choices = _kind(plain)
        if kind == "int" and (alias := dollars.alias_of(path)) is not None:
            path, kind, description = alias.name, "usd", _in_dollars(description, alias.name)
        yield FormField(
            path=path,
            kind=kind,
            required=each.required and not _allows_null(each.type),
            description=description,
            choices=choices,
            default=None if each.default is msgspec.NODEFAULT or each.default is msgspec.UNSET else each.default,
            length_max=length_max,
        )


def _in_dollars(description: str, name: str) -> str:
    """What a field in nanodollars or cents means, for a form that asks for dollars."""
    text = re.sub(r",? ?in (nanodollars|cents)( \([^)]*\))?", "", description)
    clause = re.split("[,;]", re.sub("[Nn]anodollars|[Cc]ents", "US dollars", text))[0].rstrip(".")
    unit = " a million tokens" if name.endswith("_per_million") else ""
    return f"{clause}." if "dollars" in clause else f"{clause}, in US dollars{unit}."


def _kind(plain: inspect.Type) -> tuple[Kind, tuple[str, ...]]:
    """The kind of a value, and the values that it may have."""
    if isinstance(plain, inspect.LiteralType):
        return "choice", tuple(map(str, plain.values))
    if isinstance(plain, inspect.VarTupleType | inspect.ListType):
        item = _plain(plain.item_type)[0]
        if isinstance(item, inspect.LiteralType):
            return "list", tuple(map(str, item.values))
        return ("lines" if isinstance(item, inspect.StrType) else "json"), ()
    return next((kind for types, kind in _KINDS if isinstance(plain, types)), "json"), ()


def _plain(found: inspect.Type) -> tuple[inspect.Type, str, int | None]:
    """The type without null and metadata, the description nearest to the field, and the longest text."""
    description, length_max = "", None
    while isinstance(found, inspect.Metadata | inspect.UnionType):
        if isinstance(found, inspect.Metadata):
            description = description or (found.extra_json_schema or {}).get("description", "")
            found = found.type
        else:
            found = next(each for each in found.types if not isinstance(each, inspect.NoneType | inspect.CustomType))
    if isinstance(found, inspect.StrType):
        length_max = found.max_length
    return found, description, length_max


def _allows_null(found: inspect.Type) -> bool:
    while isinstance(found, inspect.Metadata):
        found = found.type
    return isinstance(found, inspect.UnionType) and any(isinstance(each, inspect.NoneType) for each in found.types)
