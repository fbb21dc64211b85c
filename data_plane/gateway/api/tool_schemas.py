"""Static bounds on JSON Schemas and tools. ``schema_compiler.py`` checks whether a schema compiles."""

import re
from collections.abc import Container
from typing import Any, Final

import msgspec

from core.contracts.json_output import JSON_SPACES_MAX
from core.errors import InvalidRequest
from data_plane.gateway.api import fields, schema_constraints
from data_plane.gateway.api.fields import invalid, text

SCHEMA_BYTES_MAX: Final = 65_536
SCHEMA_DEPTH_MAX: Final = 32
SCHEMA_NODES_MAX: Final = 4096
SCHEMA_ENUM_MAX: Final = 1024
PATTERN_CHARS_MAX: Final = 256

_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_WITHOUT_STRICT: Final = ", or set `strict` to false"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def check_schema(name: str, schema: Any) -> dict[str, Any]:
    """A JSON Schema within the bounds. Raises ``schema_too_complex`` or ``schema_invalid``."""
    if not isinstance(schema, dict):
        raise _bad_schema(name, "it must be an object")
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES_MAX:
        raise too_complex(name, f"it is larger than {SCHEMA_BYTES_MAX} bytes")
    nodes = 0
    level: list[Any] = [schema]
    for _ in range(SCHEMA_DEPTH_MAX):
        children: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                _check_node(name, node)
                children += node.values()
            elif isinstance(node, list):
                children += node
        level = [child for child in children if isinstance(child, dict | list)]
        nodes += len(level)
        if nodes > SCHEMA_NODES_MAX:
            raise too_complex(name, f"it has more than {SCHEMA_NODES_MAX} nodes")
        if not level:
            try:
                _check_references(name, schema)
            except RecursionError:
                raise too_complex(name, "its references lead through too many others") from None
            return schema
    raise too_complex(name, f"it nests deeper than {SCHEMA_DEPTH_MAX} levels")


def check_response_format(name: str, value: Any) -> dict[str, Any]:
    """``text``, ``json_object`` or ``json_schema``."""
    kind = _type_of(name, value, "text", "json_object", "json_schema")
    if kind != "json_schema":
        fields.members(name, value, "type")
        return {"type": kind}
    given = fields.members(name, value, "type", "json_schema")
    return {"type": kind, "json_schema": _check_named_schema(f"{name}.json_schema", given.get("json_schema"))}


def _check_named_schema(outer: str, wrapper: Any) -> dict[str, Any]:
    checked = _check_named(outer, wrapper, "schema")
    if "schema" not in checked:
        raise invalid(f"{outer}.schema", "a JSON Schema")
    is_strict = checked.get("strict") is not False
    schema_constraints.check(
        f"{outer}.schema", checked["schema"], enforced=is_strict, index="[{}]", fix=_WITHOUT_STRICT
    )
    return checked


def json_form(schema: Any) -> dict[str, Any]:
    """JSON of a schema as a part of the engine's grammar, with a bound on the white space between its tokens."""
    return {
        "type": "json_schema", "json_schema": schema, "style": "json", "any_order": False,
        "max_whitespace_cnt": JSON_SPACES_MAX, "excludes": [],
    }  # fmt: skip


def check_tools(name: str, value: Any) -> list[dict[str, Any]]:
    """OpenAI's list of tools: functions only. Settings bound all of them together (``openai_request``)."""
    if not isinstance(value, list):
        raise invalid(name, "a list of tools")
    return [_check_tool(f"{name}[{index}]", tool) for index, tool in enumerate(value)]


def check_function(
    where: str, value: Any, *, schema: str, passed: Container[str] = (), index: str = "[{}]"
) -> dict[str, Any]:
    """A function of the caller's API as OpenAI's tool. ``schema`` is the name of its JSON Schema there, ``passed`` are
    its members without effect, ``index`` is how positions in a list are written there.
    """
    checked = _check_named(where, value, schema, passed=passed)
    if schema in checked:
        is_strict = checked.get("strict") is True
        schema_constraints.check(
            f"{where}.{schema}", checked[schema], enforced=is_strict, index=index, fix=_WITHOUT_STRICT
        )
        checked["parameters"] = checked.pop(schema)
    return {"type": "function", "function": checked}


def check_tool_choice(name: str, value: Any) -> str | dict[str, Any]:
    """``none``, ``auto``, ``required`` or one named function."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    if not isinstance(value, dict):
        raise invalid(name, '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}')
    _type_of(name, value, "function")
    function = fields.members(name, value, "type", "function").get("function")
    chosen = fields.members(f"{name}.function", function, "name").get("name")
    return {"type": "function", "function": {"name": check_name(f"{name}.function.name", chosen)}}


def check_name(name: str, value: Any) -> str:
    """The name of a function or a schema."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid(name, "1 to 128 letters, digits, dots, dashes or underscores")
    return value


def _check_tool(name: str, tool: Any) -> dict[str, Any]:
    _type_of(name, tool, "function")
    function = fields.members(name, tool, "type", "function").get("function")
    return check_function(f"{name}.function", function, schema="parameters")


def _type_of(where: str, value: Any, *kinds: str) -> str:
    """The ``type`` of an object, which decides its other members: one of ``kinds``."""
    if not isinstance(value, dict):
        raise invalid(where, "an object")
    kind = value.get("type")
    if isinstance(kind, str) and kind in kinds:
        return kind
    expected = " or ".join(f'"{each}"' for each in kinds)
    if isinstance(kind, str):
        raise fields.unsupported(f"{where}.type", f"it must be {expected}")
    raise invalid(f"{where}.type", expected)


def _check_named(where: str, value: Any, schema: str, *, passed: Container[str] = ()) -> dict[str, Any]:
    """Check a function or a named schema, which have the same members but for the JSON Schema's name."""
    given = fields.members(where, value, "name", "description", "strict", schema, passed=passed)
    checked: dict[str, Any] = {"name": check_name(f"{where}.name", given.get("name"))}
    for key, member in given.items():
        field = f"{where}.{key}"
        if key == "description":
            checked[key] = text(field, member)
        elif key == schema:
            checked[key] = check_schema(field, member)
        elif key == "strict":
            checked[key] = fields.boolean(field, member)
    return checked


def _check_node(name: str, node: dict[str, Any]) -> None:
    """One object of a schema. Keys that happen to be property names are checked like keywords only where their value
    has the keyword's type, so that a property called "type" or "pattern" is not mistaken for one.
    """
    kind = node.get("type")
    if isinstance(kind, str) and kind not in _TYPES:
        raise _bad_schema(name, f"{kind[:32]!r} is not a JSON Schema type")
    if isinstance(kind, list) and not all(isinstance(one, str) and one in _TYPES for one in kind):
        raise _bad_schema(name, "`type` lists something that is not a JSON Schema type")
    values = node.get("enum")
    if isinstance(values, list) and len(values) > SCHEMA_ENUM_MAX:
        raise too_complex(name, f"an enum has more than {SCHEMA_ENUM_MAX} values")
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        _check_pattern(name, pattern)
    if isinstance(node.get("patternProperties"), dict):
        raise too_complex(name, "`patternProperties` is not supported")
    for text_key in node:
        text(name, text_key, chars_max=256)


def _check_references(name: str, schema: dict[str, Any]) -> None:
    """References must be local, resolve, and form no cycle. The schema's size is bounded already."""
    open_pointers: set[str] = set()
    closed: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, list):
            for child in node:
                visit(child)
        if not isinstance(node, dict):
            return
        pointer = node.get("$ref")
        if isinstance(pointer, str) and pointer not in closed:
            if pointer in open_pointers:
                raise too_complex(name, f"the reference {pointer[:64]!r} forms a cycle")
            open_pointers.add(pointer)
            visit(_resolve(name, schema, pointer))
            open_pointers.remove(pointer)
            closed.add(pointer)
        for child in node.values():
            visit(child)

    visit(schema)


def _resolve(name: str, schema: dict[str, Any], pointer: str) -> Any:
    if pointer == "#":
        raise too_complex(name, "the reference '#' forms a cycle")
    if not pointer.startswith("#/"):
        raise too_complex(name, f"the reference {pointer[:64]!r} points outside the schema")
    node: Any = schema
    for step in pointer[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            raise _bad_schema(name, f"the reference {pointer[:64]!r} does not resolve")
        node = node[key]
    return node


def _check_pattern(name: str, pattern: str) -> None:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise too_complex(name, f"a pattern is longer than {PATTERN_CHARS_MAX} characters")


def _bad_schema(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` is not a usable JSON Schema: {reason}.", code="schema_invalid", param=name)


def too_complex(name: str, reason: str) -> InvalidRequest:
    """400 ``schema_too_complex`` for a field."""
    return InvalidRequest(f"`{name}` is too complex: {reason}.", code="schema_too_complex", param=name)
