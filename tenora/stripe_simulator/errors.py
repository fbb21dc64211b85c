"""Refusals of the simulator in the form of Stripe's error object: status, type, code, parameter and message."""

from typing import Any, Literal

_Type = Literal["api_error", "card_error", "idempotency_error", "invalid_request_error"]


class ApiError(Exception):
    """An answer with Stripe's error object. ``keeps_changes`` marks a refusal that leaves traces, such as a decline."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: _Type = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        keeps_changes: bool = False,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.keeps_changes = keeps_changes
        given = {"type": kind, "message": message, "code": code, "param": param, **details}
        self.body: dict[str, Any] = {"error": {name: value for name, value in given.items() if value is not None}}
