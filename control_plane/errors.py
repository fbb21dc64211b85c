"""Renders every failure as ``application/problem+json`` (RFC 9457) with a stable code and the request id.

An unexpected error is logged with its trace, and the caller sees only a 500. An expected error is never logged as an
error.
"""

import re
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from redis import exceptions as redis_errors
from sqlalchemy import exc as sql_errors

from core import fields
from core.errors import AppError, Unauthenticated, Unavailable
from core.fields import about

PROBLEM_JSON = "application/problem+json"
_OPENAI_PATHS = ("/v1/files", "/v1/batch")  # and /v1/batches
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_MISSING = re.compile(r"Missing required query parameter '(\w+)'")
_CODES = {
    400: "invalid_request",
    404: "route_not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    415: "unsupported_media_type",
    503: "unavailable",
}


class OpenAIError(msgspec.Struct, frozen=True, kw_only=True):
    """The same failure as OpenAI's SDKs read it."""

    message: Annotated[str, fields.DETAIL]
    type: Annotated[str, about("Kind of the error.")]
    param: Annotated[str | None, about("The field that is wrong; null where no single one is.")]
    code: Annotated[str, about("Stable code of the error, for programs.")]


class ApiProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error body. ``code`` is for programs, ``detail`` for people. ``param`` names the invalid field."""

    type: Annotated[str, about("A URI for the kind of error.")]
    title: Annotated[str, about("Short name of the status.")]
    status: Annotated[int, about("Status of the answer.")]
    detail: Annotated[str, fields.DETAIL]
    code: Annotated[str, about("Stable code of the error, for programs.")]
    request_id: Annotated[str, fields.REQUEST_ID]
    param: Annotated[str | None, about("The field that is wrong; null where no single one is.")] = None
    error: Annotated[OpenAIError | None, about("The same for OpenAI's SDKs, where they call; else left out.")] = None


def request_id_of(request: Request[Any, Any, Any]) -> str:
    """The id that ``request_middleware`` gave this request."""
    return cast("str", request.scope["state"].get("request_id", ""))


def problem(
    request: Request[Any, Any, Any],
    status: int,
    code: str,
    detail: str,
    *,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response[bytes]:
    """The response for one failure."""
    body = problem_body(request_id_of(request), status, code, detail, param, path=request.url.path)
    return Response(msgspec.json.encode(body), status_code=status, media_type=PROBLEM_JSON, headers=headers)


def problem_body(
    request_id: str, status: int, code: str, detail: str, param: str | None = None, *, path: str = ""
) -> ApiProblem:
    """The body for one failure of a request to ``path``."""
    error = None
    if path.startswith(_OPENAI_PATHS):
        kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        error = OpenAIError(message=detail, type=kind, param=param, code=code)
    return ApiProblem(
        type=f"urn:tenora:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        param=param,
        request_id=request_id,
        error=error,
    )


def on_app_error(request: Request[Any, Any, Any], error: AppError) -> Response[bytes]:
    """The response for an expected failure."""
    headers = {}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="tenora"'
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return problem(request, error.status, error.code, error.message, param=error.param, headers=headers)


def on_framework_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """The response for a failure that Litestar found: unknown route, wrong method, invalid parameter, large body."""
    if isinstance(error, InternalServerException) and error.detail == "client disconnected prematurely":
        return problem(request, 400, "client_disconnected", "The client disconnected before its body was complete.")
    code, detail, param = _CODES.get(error.status_code, "invalid_request"), error.detail, None
    headers = dict(error.headers or {})
    if error.status_code >= 500 and error.status_code != 503:
        return on_unexpected(request, error)
    match error.status_code:
        case 404:
            detail = f"{request.url.path} is not a route of this API. /schema lists the routes."
        case 405:
            detail = f"{request.url.path} does not support {request.method}. /schema lists the methods of each route."
        case 413:
            detail = "The request body is larger than this route accepts."
            headers["connection"] = "close"  # the rest of the body is not read
    if isinstance(error, ValidationException) and (missing := _MISSING.match(detail)):
        param, detail = missing[1], f"{missing[1]}: this query parameter is required."
    elif isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        first = error.extra[0]
        param = first.get("key")
        detail = f"{param}: {_explained(request, param, first['message'])}" if param else first["message"]
        if param == "data":
            param, detail = None, "This route requires a JSON body. /schema lists its fields."
    return problem(request, error.status_code, code, detail, param=param, headers=headers)


def _explained(request: Request[Any, Any, Any], param: str, message: str) -> str:
    """The framework's message. For a value that is not one of a few, it names them instead."""
    if not message.startswith("Invalid enum value"):
        return message
    parameter = request.route_handler.parsed_fn_signature.parameters.get(param)
    values = [] if parameter is None else _literals(parameter.raw)
    return f"must be one of {', '.join(map(str, values))}." if values else message


def _literals(annotation: Any) -> list[object]:
    """The values of every Literal within a type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]


def on_dependency_down(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response while Postgres or Redis does not answer. Fails closed: nothing was changed, and the caller may
    retry.
    """
    structlog.get_logger().warning("dependency unavailable", error=str(error).splitlines()[0][:300])
    dependency = "The database" if isinstance(error, sql_errors.SQLAlchemyError) else "Redis"
    return on_app_error(
        request, Unavailable(f"{dependency} does not answer. Try again in a few seconds.", retry_after_s=2)
    )


def on_unstorable(request: Request[Any, Any, Any], error: sql_errors.DataError) -> Response[bytes]:
    """The response where Postgres does not store a text for its NUL character, after no room refused it."""
    place: str | None = request.scope["state"].get("nul_at")
    if place is None:
        return on_unexpected(request, error)
    detail = f"{place or 'body'}: has a NUL character; leave it out."
    return problem(request, 400, "nul_character", detail, param=place or None)


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response for a defect: logged with its trace, shown without detail."""
    structlog.get_logger().error("unexpected error", path=request.url.path, exc_info=error)
    detail = "Internal error. Quote the request_id when you report it."
    return problem(request, 500, "internal_error", detail)


HANDLERS: dict[int | type[Exception], Any] = {  # as wide as Litestar's own type
    AppError: on_app_error,
    HTTPException: on_framework_error,
    sql_errors.DataError: on_unstorable,
    sql_errors.OperationalError: on_dependency_down,
    sql_errors.TimeoutError: on_dependency_down,
    redis_errors.ConnectionError: on_dependency_down,
    redis_errors.TimeoutError: on_dependency_down,
    Exception: on_unexpected,
}
