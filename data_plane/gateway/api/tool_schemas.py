"""Static bounds on JSON Schemas and tools. ``schema_compiler.py`` checks whether a schema compiles."""

import re
from typing import Any, Final

import msgspec

from core.errors import InvalidRequest
from data_plane.gateway.api.fields import boolean, invalid, text, unknown, unsupported

SCHEMA_BYTES_MAX: Final = 16_384
SCHEMA_DEPTH_MAX: Final = 16
SCHEMA_NODES_MAX: Final = 512
SCHEMA_ENUM_MAX: Final = 128
PATTERN_CHARS_MAX: Final = 256
TOOLS_MAX: Final = 32
TOOLS_BYTES_MAX: Final = 65_536
"""Schemas of all tools together: an engine compiles them as one grammar."""

_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_schema(name: str, schema: Any) -> dict[str, Any]:
    """A JSON Schema within the bounds. Raises ``schema_too_complex`` or ``schema_invalid``."""
    if not isinstance(schema, dict):
        raise _bad_schema(name, "it must be an object")
    if len(msgspec.json.encode(schema)) > SCHEMA_BYTES_MAX:
        raise _too_complex(name, f"it is larger than {SCHEMA_BYTES_MAX} bytes")
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
            raise _too_complex(name, f"it has more than {SCHEMA_NODES_MAX} nodes")
        if not level:
            _check_references(name, schema)
            return schema
    raise _too_complex(name, f"it nests deeper than {SCHEMA_DEPTH_MAX} levels")


def check_response_format(name: str, value: Any) -> dict[str, Any]:
    """``text``, ``json_object`` or ``json_schema``."""
    if not isinstance(value, dict):
        raise invalid(name, "an object")
    kind = value.get("type")
    allowed = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    for key in value:
        if key not in allowed:
            raise unknown(f"{name}.{key}")
    if kind in ("text", "json_object"):
        return {"type": kind}
    if kind != "json_schema":
        raise unsupported(f"{name}.type") if isinstance(kind, str) else invalid(f"{name}.type", "a string")
    return {"type": "json_schema", "json_schema": _check_named_schema(f"{name}.json_schema", value.get("json_schema"))}


def _check_named_schema(outer: str, wrapper: Any) -> dict[str, Any]:
    if not isinstance(wrapper, dict):
        raise invalid(outer, "an object")
    checked = _check_named(outer, wrapper, schema="schema", description_chars_max=1024)
    if "name" not in checked or "schema" not in checked:
        raise invalid(outer, "an object with `name` and `schema`")
    return checked


def check_tools(name: str, value: Any) -> list[dict[str, Any]]:
    """At most 32 functions, each with a bounded schema, and a bound on all schemas together."""
    if not isinstance(value, list) or not 1 <= len(value) <= TOOLS_MAX:
        raise invalid(name, f"a list of 1 to {TOOLS_MAX} tools")
    tools = [_check_tool(f"{name}[{index}]", tool) for index, tool in enumerate(value)]
    if sum(len(msgspec.json.encode(tool["function"].get("parameters"))) for tool in tools) > TOOLS_BYTES_MAX:
        raise _too_complex(name, f"the schemas of all tools are larger than {TOOLS_BYTES_MAX} bytes together")
    return tools


def check_tool_choice(name: str, value: Any) -> str | dict[str, Any]:
    """``none``, ``auto``, ``required`` or one named function."""
    if value in ("none", "auto", "required") and isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"type", "function"} and value["type"] == "function":
        function = value["function"]
        if isinstance(function, dict) and function.keys() == {"name"}:
            return {"type": "function", "function": {"name": _name(f"{name}.function.name", function["name"])}}
    raise invalid(name, '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}')


def _check_tool(name: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.keys() != {"type", "function"} or tool["type"] != "function":
        raise invalid(name, '{"type": "function", "function": {...}}')
    function = tool["function"]
    if not isinstance(function, dict):
        raise invalid(f"{name}.function", "an object")
    checked = _check_named(f"{name}.function", function, schema="parameters", description_chars_max=8192)
    if "name" not in checked:
        raise invalid(f"{name}.function.name", "a string")
    return {"type": "function", "function": checked}


def _check_named(outer: str, fields: dict[str, Any], *, schema: str, description_chars_max: int) -> dict[str, Any]:
    """Check the common fields of a named schema and a function. ``schema`` names the field with the JSON Schema."""
    checked: dict[str, Any] = {}
    for key, item in fields.items():
        field = f"{outer}.{key}"
        if key == "name":
            checked[key] = _name(field, item)
        elif key == "description":
            checked[key] = text(field, item, chars_max=description_chars_max)
        elif key == schema:
            checked[key] = check_schema(field, item)
        elif key != "strict":
            raise unknown(field)
        elif item is not None:
            checked[key] = boolean(field, item)
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
        raise _too_complex(name, f"an enum has more than {SCHEMA_ENUM_MAX} values")
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        _check_pattern(name, pattern)
    if isinstance(node.get("patternProperties"), dict):
        raise _too_complex(name, "`patternProperties` is not supported")
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
                raise _too_complex(name, f"the reference {pointer[:64]!r} forms a cycle")
            open_pointers.add(pointer)
            visit(_resolve(name, schema, pointer))
            open_pointers.remove(pointer)
            closed.add(pointer)
        for child in node.values():
            visit(child)

    visit(schema)


def _resolve(name: str, schema: dict[str, Any], pointer: str) -> Any:
    if pointer == "#":
        raise _too_complex(name, "the reference '#' forms a cycle")
    if not pointer.startswith("#/"):
        raise _too_complex(name, f"the reference {pointer[:64]!r} points outside the schema")
    node: Any = schema
    for step in pointer[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            raise _bad_schema(name, f"the reference {pointer[:64]!r} does not resolve")
        node = node[key]
    return node


def _check_pattern(name: str, pattern: str) -> None:
    if len(pattern) > PATTERN_CHARS_MAX:
        raise _too_complex(name, f"a pattern is longer than {PATTERN_CHARS_MAX} characters")


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid(name, "1 to 64 letters, digits, dots, dashes or underscores")
    return value


def _bad_schema(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` is not a usable JSON Schema: {reason}.", code="schema_invalid", param=name)


def _too_complex(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` is too complex: {reason}.", code="schema_too_complex", param=name)
