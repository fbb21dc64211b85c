"""Every expected failure, as one small tree. Each carries a stable snake_case ``code``, a status and a message that
says what was wrong, where, and what to do. How it looks on the wire is the edge's choice.

    AppError
     ├─ InvalidRequest      400   a field is wrong; ``param`` names it
     ├─ Unauthenticated     401   no key, or not a good one
     ├─ Forbidden           403   a good key that may not do this
     ├─ NotFound            404   absent, or another tenant's: the two look the same
     ├─ RequestTimeout      408   headers or body took too long to arrive
     ├─ Conflict            409   the thing is not in a state for this
     ├─ TooLarge            413   body above its limit
     ├─ UnsupportedMedia    415   an encoding or format that is not accepted
     ├─ Unprocessable       422   well-formed, but cannot be done
     ├─ TooManyRequests     429   a limit of the plan; ``retry_after_s`` or final for the period
     ├─ HeadersTooLarge     431   request line and headers above their limit
     ├─ BadGateway          502   a replica answered nonsense or went away
     └─ Unavailable         503   no capacity or a dependency is down; try again after ``retry_after_s``

``InvalidSettings`` stands beside it: no request meets it, since it ends a program at its start.
"""

from typing import ClassVar


class AppError(Exception):
    """An expected failure. ``retryable`` False means that a retry cannot succeed; SDKs read it."""

    status: ClassVar[int] = 500
    default_code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s
        self.retryable = retryable


class InvalidRequest(AppError):
    """A field of the request is wrong."""

    status = 400
    default_code = "invalid_value"


class Unauthenticated(AppError):
    """No usable key."""

    status = 401
    default_code = "invalid_api_key"


class Forbidden(AppError):
    """The key is valid but does not allow this."""

    status = 403
    default_code = "forbidden"


class NotFound(AppError):
    """Absent, or another tenant's."""

    status = 404
    default_code = "not_found"


class RequestTimeout(AppError):
    """The request took too long to arrive."""

    status = 408
    default_code = "request_timeout"


class Conflict(AppError):
    """The object's state does not allow this."""

    status = 409
    default_code = "conflict"


class TooLarge(AppError):
    """The request is larger than a size limit allows."""

    status = 413
    default_code = "request_too_large"


class UnsupportedMedia(AppError):
    """An encoding or file format that is not accepted."""

    status = 415
    default_code = "format_not_allowed"


class Unprocessable(AppError):
    """Well-formed, but cannot be done."""

    status = 422
    default_code = "unprocessable"


class TooManyRequests(AppError):
    """A limit of the plan is reached."""

    status = 429
    default_code = "rate_limit_exceeded"


class HeadersTooLarge(AppError):
    """Request line and headers above their limit."""

    status = 431
    default_code = "headers_too_large"


class BadGateway(AppError):
    """A replica disconnected or sent an invalid answer."""

    status = 502
    default_code = "replica_failed"


class Unavailable(AppError):
    """No capacity, or a dependency is down."""

    status = 503
    default_code = "unavailable"


class InvalidSettings(ValueError):
    """Settings that are missing or invalid: one line each, with the variable, what is wrong and what it is for."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
