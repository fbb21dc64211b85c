"""Completes the OpenAPI document that Litestar writes, so that it is as strict as the code and says what the code adds.

Bodies are decoded by msgspec, so msgspec describes them: with each bound, and without further fields. Litestar leaves
both out. Answers to changes have the fields that ``acknowledged_answers`` adds.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from control_plane import dollars
from control_plane.field_descriptions import described
from control_plane.idempotency.service import KEY
from control_plane.registry.schemas import NAME

_REFERENCE: Final = "#/components/schemas/{name}"
_ACKNOWLEDGED: Final = {"$ref": _REFERENCE.format(name="Acknowledged")}
_READING: Final = ("get", "head", "options")
_PATTERNS: Final = {
    ("put", "alias"): NAME.pattern,
    ("post", "Idempotency-Key"): KEY.pattern,
    ("put", "Idempotency-Key"): KEY.pattern,
}  # of parameters, by method and name


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """What answers to changes have besides their own fields, if gateways act by them. ``poll_url`` comes with 202."""

    acknowledged: bool | msgspec.UnsetType = msgspec.UNSET
    gateways: int | msgspec.UnsetType = msgspec.UNSET
    waited_ms: int | msgspec.UnsetType = msgspec.UNSET
    poll_url: str | msgspec.UnsetType = msgspec.UNSET


def completed(document: dict[str, Any], app: Litestar) -> dict[str, Any]:
    """The document of ``app`` as JSON, complete and with a description of each field. Changes it in place."""
    types = [*_body_types(app), Acknowledged]
    _, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    dollars.describe(schemas, of_requests=True)
    dollars.describe(document["components"]["schemas"], of_requests=False)
    document["components"]["schemas"] |= schemas
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    return described(document)


def _body_types(app: Litestar) -> Iterator[Any]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                if handler.parsed_data_field is not None:
                    yield handler.parsed_data_field.annotation


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    if not path.startswith(("/api/", "/v1/")):
        operation["security"] = []
        return
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "format":  # the report as a file
            operation["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}
        if pattern := _PATTERNS.get((method, parameter["name"])):
            parameter["schema"] = {"type": "string", "pattern": pattern}
    if method not in _READING and "202" not in operation["responses"]:
        _answer_changes(operation["responses"])


def _answer_changes(responses: dict[str, Any]) -> None:
    status = next(status for status in responses if status.startswith("2"))
    own = [content["schema"] for content in responses[status].get("content", {}).values()]
    body = {"application/json": {"schema": {"allOf": [*own, _ACKNOWLEDGED]}}}
    if own:
        responses[status]["content"] = body
    responses["202"] = {"description": "The change stands; a gateway does not act by it yet.", "content": body}
