"""What failures of an outside provider mean to a caller. A provider's own words are neither relayed nor logged, since
they can quote a prompt or a key.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final

import msgspec
import structlog

from core import clock
from core.errors import AppError, InvalidRequest, Unavailable
from data_plane.gateway.api.sse import MALFORMED_EVENT
from data_plane.gateway.upstream.engine_client import ReplicaFailed

_log = structlog.get_logger()
_RETRY_AFTER_MAX_S: Final = 300.0
_RETRY_AFTER: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")
_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_REFUSED: Final = frozenset({400, 413, 422})
_MAY_PASS: Final = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_SPENT: Final = frozenset({"insufficient_quota", "billing_error", "billing_not_active"})
"""What providers call an account that has no money left."""


class ProviderFailed(ReplicaFailed):
    """A provider returned nothing of an answer. ``may_pass``: the same request may succeed in a moment."""

    default_code = "provider_failed"

    def __init__(
        self, message: str, *, code: str | None = None, may_pass: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)
        self.may_pass = may_pass


class ProviderBusy(ProviderFailed):
    """A provider accepts no request now."""

    status: ClassVar[int] = Unavailable.status
    default_code = "provider_busy"


def unreachable(provider_id: str, error: Exception, *, may_pass: bool = True) -> ProviderFailed:
    """No connection to the provider, or it broke before an answer."""
    _log.warning("provider unreachable", provider=provider_id, error=type(error).__name__)
    return ProviderFailed("The model's provider could not be reached.", code="provider_unreachable", may_pass=may_pass)


def refusal(provider_id: str, status: int, headers: Mapping[str, str], raw: bytes) -> AppError:
    """The error for a status other than 200, of which ``raw`` is the beginning of the body."""
    code = _code(raw)
    _log.warning("request refused by provider", provider=provider_id, status=status, code=code)
    if status in _REFUSED:
        return InvalidRequest(
            "The model's provider refused this combination of parameters; check their values, the tools and the "
            "length of the prompt.",
            code="request_refused",
        )
    if status in (401, 403):
        return ProviderFailed("The model's provider refused this platform's key.", code="provider_key_refused")
    if status == 404:
        return ProviderFailed("The provider does not have this model.", code="provider_model_missing")
    if status == 402 or code in _SPENT:
        return ProviderBusy("The platform's account at the model's provider is used up.", code="provider_spent")
    if status in _MAY_PASS:
        after_s = _retry_after_s(headers)
        kind = ProviderBusy if status in (429, 503, 529) else ProviderFailed
        return kind("The model's provider accepts no request now.", may_pass=True, retry_after_s=after_s)
    return ProviderFailed("The model's provider failed.")


def no_answer(provider_id: str, why: str) -> ProviderFailed:
    """The provider answered 200 with something that is no answer."""
    _log.warning("answer of a provider unreadable", provider=provider_id, why=why)
    return ProviderFailed("The model's provider sent no answer.")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the provider asks to wait, in seconds; None where it asks for nothing that can be read."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        if _RETRY_AFTER.fullmatch(value := headers.get(name, "")):
            return min(float(value) / unit, _RETRY_AFTER_MAX_S)
    try:
        after_s = (parsedate_to_datetime(headers.get("retry-after", "")) - clock.now()).total_seconds()
        return min(after_s, _RETRY_AFTER_MAX_S) if after_s > 0 else None
    except (ArithmeticError, LookupError, TypeError, ValueError):  # TypeError: it has no time zone
        return None


def _code(raw: bytes) -> str | None:
    """The code or type in an error's body, if it is an identifier."""
    try:
        error = msgspec.json.decode(raw, type=dict[str, Any]).get("error")
    except MALFORMED_EVENT:
        return None
    given = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    return next((each for each in given if isinstance(each, str) and _CODE.fullmatch(each)), None)
