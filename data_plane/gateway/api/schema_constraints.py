"""What a JSON Schema demands and engines do not enforce. Pure.

The rules were measured with xgrammar 0.2.8, the grammar compiler of vLLM 0.32: it ignores these constraints without an
error, or reads them otherwise than JSON Schema does. A pattern has to match the whole string there.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from core.errors import InvalidRequest

FORMATS: Final = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "relative-json-pointer",
     "time", "uri", "uri-reference", "uri-template", "uuid"}
)  # fmt: skip
"""Formats of strings that are enforced."""
ANY_TEXT: Final = frozenset({"binary", "directory-path", "file-path", "password", "path"})
"""Formats that mark a string and allow all of them."""

UNENFORCED: Final = (
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "if",
    "maxContains", "minContains", "not",
)  # fmt: skip
_DECIDING: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The first of these in an object decides alone what is allowed."""
_STRING: Final = frozenset({"format", "maxLength", "minLength", "pattern"})
_NUMBER: Final = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_ARRAY: Final = frozenset({"maxItems", "minItems", "uniqueItems"})
_OBJECT: Final = frozenset({"maxProperties", "minProperties", "propertyNames", "required"})
_ITEMS: Final = frozenset({"items", "prefixItems", "unevaluatedItems"})
_PROPERTIES: Final = frozenset({"additionalProperties", "properties", "unevaluatedProperties"})
_NEED_TYPE: Final = _STRING | _NUMBER | _ARRAY | _OBJECT
_ASSERTIONS: Final = _NEED_TYPE | _ITEMS | _PROPERTIES | frozenset({"type", *_DECIDING})
_MAPS: Final = ("$defs", "definitions", "properties")
_SINGLE: Final = ("additionalProperties", "items", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_TYPE_OF: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

_BRANCHES_MAX: Final = 64
"""The most schemas of a ``oneOf`` that are compared with one another."""

_TOKEN: Final = re.compile(
    r"\\u\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\.|\[\^?(?:\\.|[^\]\\])*\]|\(\?<?[=!]|\(\?P?<\w+>|\(\?:?|.",
    re.DOTALL,
)
_GROUPS: Final = re.compile(r"(?:\((?:\?:|\?P?<\w+>)?)*")
_FAULTS: Final = tuple(
    (re.compile(token, re.DOTALL), reason, fatal)
    for token, reason, fatal in (
        (r"\(\?[=!]", "engines ignore lookahead", False),
        (r"\(\?<[=!]", "engines do not support lookbehind", True),
        (r"\(\?", "engines do not support flags and conditions of groups", True),
        (r"\\[1-9k]", "engines do not support backreferences", True),
        (r"\\[bBpP]", "engines do not support `{}`", True),
        # A string of JSON holds these only escaped. In a class, engines leave them out.
        (r"\\?[\x00-\x1f\"]|\\[\\ntrfv0]|(?i:\\u\{0*[0-9a-f]\}|\\(?:x|u00|u\{0*)(?:[01][0-9a-f]|22|5c)\}?)",
         "engines write `{}` into JSON as it is", False),
        (r"\\(?![dDwWsS])[A-Za-z]", "engines read `{}` as a letter", False),
        (r"\[(?:\\.|[^\\])*?\\(?![dDwWsSntrfvbxu])[A-Za-z].*", "engines read an escape in `{}` as a letter", False),
    )
)  # fmt: skip
"""Parts of a pattern that are not enforced: what they look like, the reason, and whether the pattern compiles."""


class Unenforced(NamedTuple):
    """A constraint and the reason why it is not enforced. ``fatal`` says that its schema does not compile either."""

    path: tuple[str | int, ...]
    reason: str
    fatal: bool = False


def check(name: str, schema: dict[str, Any], *, enforced: bool, index: str, fix: str) -> None:
    """Raise ``schema_invalid`` for the first constraint that engines do not enforce, if the caller wants all of them
    ``enforced``, else for the first that no engine compiles. ``index`` is how the caller's API writes a position in a
    list; ``fix`` is what else the caller can do about it.
    """
    try:
        every = list(unenforced(schema))
    except RecursionError:
        raise InvalidRequest(
            f"`{name}` is too complex: its references lead through too many others.",
            code="schema_too_complex",
            param=name,
        ) from None
    for found in every:
        if enforced or found.fatal:
            steps = (index.format(step) if isinstance(step, int) else f".{step}" for step in found.path)
            param = name + "".join(steps)
            raise InvalidRequest(
                f"`{param}` is not enforced here: {found.reason}. Change or remove it{'' if found.fatal else fix}.",
                code="schema_invalid",
                param=param,
            )


def unenforced(schema: dict[str, Any]) -> Iterator[Unenforced]:
    """All constraints of a schema that are not enforced. Its size and its references are checked already."""
    return _in_node(schema, _Types(schema), ())


def _in_node(node: Any, types: "_Types", path: tuple[str | int, ...]) -> Iterator[Unenforced]:
    if not isinstance(node, dict):
        return
    for key in UNENFORCED:
        if key in node:
            yield Unenforced((*path, key), "engines ignore this keyword")
    deciding = next((key for key in _DECIDING if key in node), None)
    if deciding is None:
        for key, reason, fatal in _in_typed(node):
            yield Unenforced((*path, key), reason, fatal)
    else:
        for key, reason in _beside(node, types, deciding):
            yield Unenforced((*path, key), reason)
    for step, child in _children(node):
        yield from _in_node(child, types, (*path, *step))


def _children(node: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    for key in _MAPS:
        if isinstance(node.get(key), dict):
            yield from (((key, name), child) for name, child in node[key].items())
    for key in _SINGLE:
        child = node.get(key)
        if isinstance(child, dict):
            is_name = key == "propertyNames" and child.keys().isdisjoint(_DECIDING)
            yield (key,), {"type": "string", **child} if is_name else child
    for key in _LISTS:
        yield from (((key, index), child) for index, child in enumerate(_list(node.get(key))))


def _beside(node: dict[str, Any], types: "_Types", deciding: str) -> Iterator[tuple[str, str]]:
    """What ``deciding`` hides, and what it does not decide exactly."""
    branches = _list(node[deciding])
    if deciding == "allOf" and len(branches) > 1:
        yield "allOf", "engines cannot combine several schemas; write one"
    if deciding == "oneOf" and not types.are_apart(branches):
        yield "oneOf", "its schemas may allow the same value; use `anyOf`"
    for key in sorted(_ASSERTIONS & node.keys() - {deciding}):
        if key == "type" and (decided := types.of(node)) and decided <= _declared(node):
            continue
        if key == "enum" and deciding == "const" and node["const"] in _list(node["enum"]):
            continue
        yield key, f"it has no effect beside `{deciding}`"


def _in_typed(node: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    types = _declared(node) or _inferred(node)
    if not types:
        yield from ((key, "it has no effect without `type`", False) for key in sorted(_NEED_TYPE & node.keys()))
    if "string" in types:
        yield from _in_string(node)
    if types & {"integer", "number"} and "multipleOf" in node:
        step, bounds = node["multipleOf"], _NUMBER & node.keys() - {"multipleOf"}
        if "number" in types or type(step) is not int or not 1 <= step <= 1024 or bounds:
            yield "multipleOf", "only an integer's multiples of a whole number up to 1024 without bounds are", False
    if "array" in types:
        if node.get("uniqueItems"):
            yield "uniqueItems", "engines ignore this keyword", False
        if isinstance(node.get("items"), list):
            yield "items", "a list of schemas belongs into `prefixItems`", True
        if not _ITEMS & node.keys():
            yield from ((key, "it needs `items`", True) for key in ("maxItems", "minItems") if key in node)
    if "object" in types:
        yield from _in_object(node)


def _in_string(node: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    shape = next((key for key in ("format", "pattern") if key in node), None)
    form = node.get("format")
    if isinstance(form, str) and form not in FORMATS:
        shape = "pattern" if "pattern" in node else None
        if form not in ANY_TEXT:
            yield "format", f"engines do not know the format {form[:32]!r}", False
    elif form is not None and "pattern" in node:
        yield "pattern", "it has no effect beside `format`", False
    if isinstance(pattern := node.get("pattern"), str) and (fault := _in_pattern(pattern)):
        yield "pattern", *fault
    if shape is not None:
        yield from ((k, f"it has no effect beside `{shape}`", False) for k in ("maxLength", "minLength") if k in node)


def _in_object(node: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    named = node.get("properties")
    known = named if isinstance(named, dict) else {}
    missing = [name for name in _list(node.get("required")) if isinstance(name, str) and name not in known]
    if missing:
        yield "required", f"`properties` has no {missing[0][:64]!r}", False
    if "propertyNames" in node and (known or node.get("unevaluatedProperties", True) is not True):
        yield "propertyNames", "it has no effect beside `properties`", False
    if not _PROPERTIES & node.keys() and "propertyNames" not in node:
        sizes = ("maxProperties", "minProperties")
        yield from ((key, "it needs `additionalProperties` or `properties`", True) for key in sizes if key in node)


def _in_pattern(pattern: str) -> tuple[str, bool] | None:
    """What a regular expression has that engines do not enforce, and whether they refuse it."""
    depth, branch, at = 0, 0, 0
    if pattern.startswith("(?i)"):
        at = branch = 4
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        assert found is not None, "the last alternative matches any character"
        part = found[0]
        if fault := _token_fault(part):
            return fault
        depth += part.startswith("(") - (part == ")")
        if part == "^" and _GROUPS.fullmatch(pattern, branch, at) is None:
            return "engines ignore `^` after the beginning", False
        if part == "$" and pattern[at + 1 :].split("|", maxsplit=1)[0].strip(")"):
            return "engines ignore `$` before the end", False
        if part == "|" and depth == 0:
            branch = at + 1
        at = found.end()
    return None


def _token_fault(written: str) -> tuple[str, bool] | None:
    found = (fault for fault in _FAULTS if fault[0].fullmatch(written))
    return next(((reason.format(written), fatal) for _, reason, fatal in found), None)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _declared(node: dict[str, Any]) -> frozenset[str]:
    kind = node.get("type")
    kinds = frozenset(each for each in (_list(kind) or [kind]) if isinstance(each, str))
    return kinds | {"integer"} if "number" in kinds else kinds


def _inferred(node: dict[str, Any]) -> frozenset[str]:
    return frozenset({"object"} if _PROPERTIES & node.keys() else {"array"} if _ITEMS & node.keys() else ())


def _values(node: Any) -> list[Any] | None:
    if not isinstance(node, dict):
        return None
    return [node["const"]] if "const" in node else node["enum"] if isinstance(node.get("enum"), list) else None


class _Branch(NamedTuple):
    """What is compared of a schema in a ``oneOf``. ``marks`` are the required properties with constant values."""

    types: frozenset[str]
    values: frozenset[str] | None
    marks: dict[str, frozenset[str]]

    def is_apart(self, other: "_Branch") -> bool:
        if self.values is not None and other.values is not None:
            return self.values.isdisjoint(other.values)
        if self.types and other.types and self.types.isdisjoint(other.types):
            return True
        common = self.marks.keys() & other.marks.keys() if self.types == other.types == {"object"} else ()
        return any(self.marks[mark].isdisjoint(other.marks[mark]) for mark in common)


class _Types:
    """The types that parts of one schema allow, each found once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}  # with the part, so that its id stays its own

    def of(self, node: Any) -> frozenset[str]:
        """Empty if all are allowed, or if it is not known."""
        node = self._resolved(node)
        if not isinstance(node, dict):
            return frozenset()
        if id(node) not in self._known:
            self._known[id(node)] = node, self._find(node)
        return self._known[id(node)][1]

    def are_apart(self, branches: list[Any]) -> bool:
        """Whether no value fits two of the schemas, as far as their types, values and marks say so."""
        compared = [self._branch(self._resolved(branch)) for branch in branches[: _BRANCHES_MAX + 1]]
        pairs = itertools.combinations(compared, 2)
        return len(compared) <= _BRANCHES_MAX and all(one.is_apart(other) for one, other in pairs)

    def _find(self, node: dict[str, Any]) -> frozenset[str]:
        if (values := _values(node)) is not None:
            return frozenset(_TYPE_OF.get(type(value), "null") for value in values)
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(node.get(key), list):
                each = [self.of(branch) for branch in node[key]]
                return frozenset().union(*each) if all(each) else frozenset()
        return _declared(node) or _inferred(node)

    def _branch(self, node: Any) -> _Branch:
        values = _values(node)
        named = node.get("properties") if isinstance(node, dict) else None
        properties = named if isinstance(named, dict) else {}
        required = [name for name in _list(node.get("required")) if isinstance(name, str)] if properties else []
        marks = {name: _values(self._resolved(properties.get(name))) for name in required}
        return _Branch(
            self.of(node),
            None if values is None else frozenset(map(repr, values)),
            {name: frozenset(map(repr, found)) for name, found in marks.items() if found is not None},
        )

    def _resolved(self, node: Any) -> Any:
        while isinstance(node, dict) and isinstance(pointer := node.get("$ref"), str):
            node = self._root
            for step in pointer[2:].split("/"):
                node = node[step.replace("~1", "/").replace("~0", "~")]
        return node
