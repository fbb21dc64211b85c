"""How a failure looks to an OpenAI client: the error body, and the headers its SDK acts on.

What failed is decided elsewhere, as core.errors.AppError; nothing an engine said is ever passed on.
"""

import math
from typing import Final

import msgspec

from core.errors import AppError, TooManyRequests

Headers = list[tuple[bytes, bytes]]

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


_MAY_PASS: Final = frozenset({408, 409, 429})
"""Refusals that another attempt may get past; SDKs retry these, and every other 4xx says that it cannot."""


_MORE: Final = ("eta_s", "max_tokens_that_fit")


class HeadersTooLarge(AppError):
    """Request line and headers above their limit."""

    status = 431
    default_code = "headers_too_large"


class RequestTimeout(AppError):
    """A request that takes too long to arrive."""

    status = 408
    default_code = "request_timeout"


class MethodNotAllowed(AppError):
    """The path exists, for another method."""

    status = 405
    default_code = "method_not_allowed"


class InternalError(AppError):
    """A defect of ours."""


class QuotaExceeded(TooManyRequests):
    """A limit of the tenant's plan, with what the rate-limit headers say about it."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        headers: Headers,
        retry_after_s: float | None,
        retryable: bool,
        max_tokens_that_fit: int | None,
    ) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s, retryable=retryable)
        self.headers = headers
        self.max_tokens_that_fit = max_tokens_that_fit


def error_type(error: AppError) -> str:
    """OpenAI's ``type``; clients are told to match on ``code``, which is ours."""
    if error.code == "insufficient_quota":
        return "insufficient_quota"
    return _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")


def error_body(error: AppError) -> bytes:
    """``{"error": {"message", "type", "param", "code"}}``, all four always there; ``eta_s`` or
    ``max_tokens_that_fit`` too where it is known.
    """
    said = {"message": error.message, "type": error_type(error), "param": error.param, "code": error.code}
    more = {name: known for name in _MORE if (known := getattr(error, name, None)) is not None}
    return msgspec.json.encode({"error": {**said, **more}})


def error_headers(error: AppError) -> Headers:
    """``retry-after`` in seconds, ``retry-after-ms``, and ``x-should-retry`` where the SDK would guess wrong."""
    headers: Headers = list(error.headers) if isinstance(error, QuotaExceeded) else []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after_s * 1000))))
    retryable = error.retryable
    if retryable is None and 400 <= error.status < 500 and error.status not in _MAY_PASS:
        retryable = False
    if retryable is not None:
        headers.append((b"x-should-retry", b"true" if retryable else b"false"))
    return headers


def error_event(error: AppError) -> bytes:
    """The same body as the last event of a stream that has begun; no ``[DONE]`` follows it."""
    return b"data: " + error_body(error) + b"\n\n"
