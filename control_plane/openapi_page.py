"""The OpenAPI document as one HTML page, at ``/schema/docs``. It loads nothing: no script, style or font."""

from collections.abc import Iterator
from html import escape
from typing import Any, Final

from litestar import Request
from litestar.openapi.plugins import OpenAPIRenderPlugin

from control_plane.openapi_document import completed

_METHODS: Final = ("get", "put", "post", "patch", "delete")
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{background:#8882;padding:0 .25em}table{border-collapse:collapse;width:100%}"
    "td,th{border:1px solid #8884;padding:.25em .5em;text-align:left;vertical-align:top}"
    ":root{color-scheme:light dark}"
)
_REFERENCE: Final = "#/components/schemas/"


class PlainPage(OpenAPIRenderPlugin):
    """Renders the document with headings, tables and links only."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """The page."""
        return "".join(_page(completed(openapi_schema, request.app))).encode()


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
    yield f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
    yield f"<p>{escape(info.get('description', ''))} The same as <a href='/schema/openapi.json'>JSON</a>.</p>"
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if operation := operations.get(method):
                yield from _operation(method, path, operation)
    yield "<h1>Types</h1>"
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        yield f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{_text(schema)}</p>'
        yield from _fields(schema)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{_text(operation)}</p>"
    if parameters := operation.get("parameters"):
        yield "<table><tr><th>parameter<th>in<th>type<th>meaning"
        for each in parameters:
            cells = (escape(each["name"]), escape(each["in"]), _type(each.get("schema", {})), _text(each))
            yield "<tr>" + "".join(f"<td>{cell}" for cell in cells)
        yield "</table>"
    body = _content(operation.get("requestBody", {}))
    if body:
        yield f"<p>Body: {body}</p>"
    answers = ((status, _content(answer)) for status, answer in operation.get("responses", {}).items())
    shown = ", ".join(f"{escape(status)} {content}".strip() for status, content in answers)
    yield f"<p>Answers: {shown}</p>"


def _content(holder: dict[str, Any]) -> str:
    return ", ".join(_type(each["schema"]) for each in holder.get("content", {}).values() if "schema" in each)


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    if not properties:
        return
    required = set(schema.get("required", ()))
    yield "<table><tr><th>field<th>type<th>meaning"
    for name, field in properties.items():
        shown = escape(name) + ("" if name in required else " (optional)")
        yield f"<tr><td><code>{shown}</code><td>{_type(field)}<td>{_text(field)}"
    yield "</table>"


def _type(schema: dict[str, Any]) -> str:
    """A link for a named type, else the JSON type with its bounds."""
    if (reference := schema.get("$ref", "")).startswith(_REFERENCE):
        name = escape(reference.removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    for several in ("oneOf", "anyOf", "allOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    kind = schema.get("type", "any")
    shown = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if "items" in schema:
        shown += f" of {_type(schema['items'])}"
    bounds = [f"{name} {schema[name]}" for name in ("minimum", "maximum", "minLength", "maxLength") if name in schema]
    return ", ".join([shown, *(escape(bound) for bound in bounds)])


def _text(described: dict[str, Any]) -> str:
    return escape(described.get("description") or described.get("summary") or "").replace("``", "")
