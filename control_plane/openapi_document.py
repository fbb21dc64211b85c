"""Completes the OpenAPI document that Litestar writes, so that it is as strict as the code and says what the code adds.

Bodies are decoded by msgspec, so msgspec describes them: with each bound, and without further fields. Litestar leaves
both out. Answers to changes have the fields that ``acknowledged_answers`` adds.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute

from control_plane import dollars
from control_plane.idempotency.service import KEY
from control_plane.registry.schemas import NAME
from core import fields
from core.fields import about

_REFERENCE: Final = "#/components/schemas/{name}"
_ACKNOWLEDGED: Final = {"$ref": _REFERENCE.format(name="Acknowledged")}
_READING: Final = ("get", "head", "options")
_PATTERNS: Final = {
    ("put", "alias"): NAME.pattern,
    ("post", "Idempotency-Key"): KEY.pattern,
    ("put", "Idempotency-Key"): KEY.pattern,
}  # of parameters, by method and name
_OF_PATHS: Final[dict[str, str]] = {
    "alarm_id": "Id of the alarm.",
    "alias": "Name of the alias.",
    "base_model": "Id of the base model.",
    "change_id": "Id of the change, from a `poll_url`.",
    "credit_note_id": "Id of the credit note.",
    "delivery_id": "Id of the delivery.",
    "discount_id": "Id of the discount or coupon.",
    "draft_id": "Id of the draft.",
    "endpoint_id": "Id of the notification endpoint.",
    "event_id": "Id of the event at Stripe.",
    "invoice_id": "Id of the invoice.",
    "key_id": "Id of the API key.",
    "number": "Number of the version.",
    "limit_id": "Id of the spending limit.",
    "line_id": "Id of the invoice's line.",
    "lot_id": "Id of the lot of credit.",
    "name": "Name of the adapter.",
    "note_id": "Id of the credit note.",
    "page_id": "Id of the page.",
    "plan_id": "Id of the plan.",
    "replica_id": "Id of the replica.",
    "request_id": "Id of the request, from the `x-request-id` header of its answer.",
    "revision_id": "Id of the revision.",
    "revocation_id": "Id of the revocation.",
    "run_id": "Id of the reconciliation.",
    "tenant_id": "Id of the tenant.",
    "user_id": "Id of the person.",
}
"""What the variable parts of paths are. A name means the same in every path."""


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """What answers to changes have besides their own fields, if gateways act by them. ``poll_url`` comes with 202."""

    acknowledged: Annotated[bool | msgspec.UnsetType, fields.ACKNOWLEDGED] = msgspec.UNSET
    gateways: Annotated[int | msgspec.UnsetType, fields.GATEWAYS] = msgspec.UNSET
    waited_ms: Annotated[int | msgspec.UnsetType, about("Milliseconds that the call waited for gateways.")] = (
        msgspec.UNSET
    )
    poll_url: Annotated[str | msgspec.UnsetType, about("Where to ask whether the change is acknowledged.")] = (
        msgspec.UNSET
    )


def completed(document: dict[str, Any], app: Litestar) -> dict[str, Any]:
    """The document of ``app`` as JSON, complete and with a description of each field. Changes it in place."""
    types = [*_body_types(app), Acknowledged]
    _, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    for schema in document["components"]["schemas"].values():
        schema.pop("description", None)  # Litestar writes what a field means on the field's type as well
        for field in schema.get("properties", {}).values():
            for reference in field.pop("allOf", ()):
                field.update(reference)
    dollars.describe(schemas, of_requests=True)
    dollars.describe(document["components"]["schemas"], of_requests=False)
    document["components"]["schemas"] |= schemas
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    return document


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
        if parameter["in"] == "path" and parameter["name"] in _OF_PATHS:
            parameter.setdefault("description", _OF_PATHS[parameter["name"]])
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
