"""The failures of a call to Stripe as one small tree, sorted by what the caller has to do next.

    StripeFailure                502
     ├─ StripeUnavailable        503  unknown or no outcome: try again later with the same key and parameters
     ├─ StripeRefused            422  Stripe understood and says no; a retry cannot succeed
     │   └─ StripeCardDeclined   402  the card was declined; ``is_hard`` and ``needs_owner`` decide about the next try
     ├─ StripeKeyConflict        502  the idempotency key was used with other parameters: alarm, never retry by itself
     ├─ StripeObjectNotFound     502  an object that the call names is gone: an admin has to look
     ├─ StripeAccessDenied       502  the key is wrong or may not do this: an operator has to act
     └─ StripeLookupInconclusive 502  a lost answer could not be found for certain: alarm, send nothing

``billing.stripe.client`` raises them, by ``failure_of``; no other module sees an error of the SDK.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, TypedDict

from core.errors import AppError

_HARD_DECLINES: Final = frozenset(
    {
        "card_not_supported",
        "currency_not_supported",
        "expired_card",
        "fraudulent",
        "highest_risk_level",
        "incorrect_number",
        "invalid_account",
        "lost_card",
        "pickup_card",
        "restricted_card",
        "revocation_of_all_authorizations",
        "revocation_of_authorization",
        "security_violation",
        "stolen_card",
        "stop_payment_order",
        "transaction_not_allowed",
    }
)
"""Decline codes after which the same card fails again (https://docs.stripe.com/declines/codes)."""
_ACTION_CODES: Final = frozenset({"authentication_required"})


class StripeFailure(AppError):
    """A call to Stripe failed."""

    status: ClassVar[int] = 502
    default_code: ClassVar[str] = "stripe_failed"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        request_id: str | None = None,
        stripe_code: str | None = None,
        replayed: bool = False,
    ) -> None:
        super().__init__(message, code=code, param=param, retry_after_s=retry_after_s)
        self.request_id = request_id  # Stripe's own name for the request, for its support
        self.stripe_code = stripe_code
        self.replayed = replayed  # Stripe repeated a stored answer: the same key never gets another one


class StripeUnavailable(StripeFailure):
    """Stripe did not answer, is limiting requests, or failed itself. The call may or may not have taken effect."""

    status = 503
    default_code = "stripe_unavailable"


class StripeRefused(StripeFailure):
    """Stripe refused the request; the message names the parameter."""

    status = 422
    default_code = "stripe_refused"


class StripeCardDeclined(StripeRefused):
    """The payment method was declined."""

    status = 402
    default_code = "card_declined"

    def __init__(
        self, message: str, *, decline_code: str | None, stripe_code: str | None, request_id: str | None
    ) -> None:
        super().__init__(message, stripe_code=stripe_code, request_id=request_id)
        self.decline_code = decline_code

    @property
    def is_hard(self) -> bool:
        """Whether the same card will be declined again, so that only another payment method helps."""
        return self.decline_code in _HARD_DECLINES or self.stripe_code in _HARD_DECLINES

    @property
    def needs_owner(self) -> bool:
        """Whether the card's owner has to confirm the payment (3D Secure) before any further attempt."""
        return self.decline_code in _ACTION_CODES or self.stripe_code in _ACTION_CODES


class StripeKeyConflict(StripeFailure):
    """An idempotency key was sent again with other parameters."""

    default_code = "stripe_key_conflict"


class StripeObjectNotFound(StripeFailure):
    """An object that the call names does not exist at Stripe, or was deleted there."""

    default_code = "stripe_object_not_found"


class StripeAccessDenied(StripeFailure):
    """Stripe does not accept the API key for this call."""

    default_code = "stripe_access_denied"


class StripeLookupInconclusive(StripeFailure):
    """Several objects carry the same id of ours, or more objects exist than a lookup reads."""

    default_code = "stripe_lookup_inconclusive"


class _Facts(TypedDict):
    request_id: str | None
    stripe_code: str | None


def failure_of(
    message: str, *, status: int | None, error: Mapping[str, object], headers: Mapping[str, str]
) -> StripeFailure:
    """The failure that an answer of Stripe's means: its status (None when none came), error object and headers.

    Unknown answers are StripeUnavailable: the call may have taken effect, so that it has to be looked up.
    """
    code, param = _text(error.get("code")), _text(error.get("param"))
    facts: _Facts = {"request_id": headers.get("request-id"), "stripe_code": code}
    if status in (400, 404) and error.get("type") == "idempotency_error":
        return StripeKeyConflict(f"Stripe knows this idempotency key from another request: {message}", **facts)
    if status == 404 or (status == 400 and code == "resource_missing" and param is not None):
        return StripeObjectNotFound(f"Stripe has no such object: {message}", param=param, **facts)
    if status == 402:
        decline = _text(error.get("decline_code"))
        return StripeCardDeclined(f"Stripe declined the card: {message}", decline_code=decline, **facts)
    if status in (401, 403):
        return StripeAccessDenied(f"Stripe does not accept TENORA_STRIPE_API_KEY: {message}", **facts)
    if status == 400 and code != "rate_limit":
        return StripeRefused(f"Stripe refuses the request: {message}", param=param, **facts)
    retry_after = headers.get("retry-after", "")
    return StripeUnavailable(
        f"Stripe gave no usable answer; the call may have taken effect: {message}",
        **facts,
        retry_after_s=int(retry_after) if retry_after.isdecimal() else None,
        replayed=headers.get("idempotent-replayed") == "true",
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
