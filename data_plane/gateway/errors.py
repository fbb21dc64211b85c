"""Renders errors for OpenAI clients: the error body, and the headers that OpenAI's SDKs act on.

Other modules raise the errors, as core.errors.AppError. An engine's own error text is never passed on.
"""

import math
from typing import Final

import msgspec

from core.errors import AppError, Conflict, InvalidRequest, TooManyRequests

Headers = list[tuple[bytes, bytes]]

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


_MAY_PASS: Final = frozenset({408, 409, 429})
"""Client errors that may succeed when retried. SDKs retry these; on every other 4xx they do not retry."""


_MORE: Final = ("eta_s", "max_tokens_that_fit")


class MethodNotAllowed(AppError):
    """The path exists, but not for this method."""

    status = 405
    default_code = "method_not_allowed"


class InternalError(AppError):
    """A defect in the gateway."""


class RequestSettled(Conflict):
    """A request with this id was billed before, or, with the code ``request_ended``, ended without a charge. Only a
    line of a batch can meet it, whose answer was then lost.
    """

    default_code = "request_settled"


class QuotaExceeded(TooManyRequests):
    """A limit of the tenant's plan is exceeded: ``limit``, as ``<level>.<limit>``. Carries the rate-limit headers."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        headers: Headers,
        retry_after_s: float | None,
        retryable: bool,
        max_tokens_that_fit: int | None,
        limit: str,
    ) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s, retryable=retryable)
        self.headers = headers
        self.limit = limit
        self.max_tokens_that_fit = max_tokens_that_fit


class ContextLengthExceeded(InvalidRequest):
    """Prompt and completion do not fit the context. The message is OpenAI's, by whose words clients recognize it; the
    numbers are for the words of another API. ``max_tokens`` is what the caller asked for. ``allowed_by`` says whose
    limit is smaller than the ``model_tokens`` of the model's context.
    """

    default_code = "context_length_exceeded"

    def __init__(
        self, *, context_tokens: int, model_tokens: int, allowed_by: str, prompt_tokens: int, max_tokens: int | None,
        prompt_param: str, max_tokens_param: str,
    ) -> None:  # fmt: skip
        room = context_tokens > prompt_tokens
        self.context_tokens, self.prompt_tokens = context_tokens, prompt_tokens
        self.max_tokens = max_tokens if room else None
        self.note = ""
        if context_tokens < model_tokens:
            self.note = f" This is the limit of the {allowed_by}; the model allows {model_tokens} tokens."
        wanted = f"your {prompt_param} resulted in {prompt_tokens} tokens"
        if max_tokens is not None:
            parts = f"{prompt_tokens} in the {prompt_param}, {max_tokens} in the completion"
            wanted = f"you requested {prompt_tokens + max_tokens} tokens ({parts})"
        fix = f"reduce the length of the {prompt_param}" + (f" or lower `{max_tokens_param}`" if room else "")
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens. However, {wanted}. Please {fix}."
            + self.note,
            param=max_tokens_param if room else prompt_param,
        )


def error_type(error: AppError) -> str:
    """OpenAI's ``type``. The documentation asks clients to match on ``code``, which Tenora defines."""
    if error.code == "insufficient_quota":
        return "insufficient_quota"
    return _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")


def error_body(error: AppError) -> bytes:
    """``{"error": {"message", "type", "param", "code"}}``, always with all four, and with ``eta_s`` or
    ``max_tokens_that_fit`` where known.
    """
    fields = {"message": error.message, "type": error_type(error), "param": error.param, "code": error.code}
    optional = {name: known for name in _MORE if (known := getattr(error, name, None)) is not None}
    return msgspec.json.encode({"error": {**fields, **optional}})


def error_headers(error: AppError) -> Headers:
    """``retry-after`` in seconds, ``retry-after-ms``, and ``x-should-retry`` where the SDK would decide wrongly."""
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
    """The same body as the last event of a stream that has begun. No ``[DONE]`` follows it."""
    return b"data: " + error_body(error) + b"\n\n"
