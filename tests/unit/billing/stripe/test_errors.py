"""Which failure an answer of Stripe's means."""

import pytest

from billing.stripe.errors import (
    StripeAccessDenied,
    StripeCardDeclined,
    StripeKeyConflict,
    StripeObjectNotFound,
    StripeRefused,
    StripeUnavailable,
    failure_of,
)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (None, {}, StripeUnavailable),
        (200, {}, StripeUnavailable),  # not JSON
        (400, {"type": "invalid_request_error"}, StripeRefused),
        (400, {"type": "idempotency_error"}, StripeKeyConflict),
        (400, {"code": "rate_limit"}, StripeUnavailable),
        (400, {"code": "resource_missing", "param": "customer"}, StripeObjectNotFound),
        (400, {"code": "resource_missing"}, StripeRefused),  # no default payment method
        (401, {}, StripeAccessDenied),
        (402, {"type": "card_error", "code": "card_declined"}, StripeCardDeclined),
        (403, {}, StripeAccessDenied),
        (404, {"code": "resource_missing", "param": "id"}, StripeObjectNotFound),
        (409, {"code": "lock_timeout"}, StripeUnavailable),
        (429, {}, StripeUnavailable),
        (500, {"type": "api_error"}, StripeUnavailable),
        (503, {}, StripeUnavailable),
    ],
)
def test_each_answer_is_one_kind_of_failure(status, error, kind):
    failure = failure_of("why", status=status, error=error, headers={})
    assert type(failure) is kind
    assert "why" in failure.message


def test_a_replayed_500_says_so():
    headers = {"idempotent-replayed": "true", "request-id": "req_1", "retry-after": "7"}
    failure = failure_of("why", status=500, error={}, headers=headers)
    assert (failure.replayed, failure.request_id, failure.retry_after_s) == (True, "req_1", 7)
    assert not failure_of("why", status=500, error={}, headers={}).replayed


@pytest.mark.parametrize(
    ("code", "decline", "hard", "needs_owner"),
    [
        ("card_declined", "insufficient_funds", False, False),
        ("card_declined", "generic_decline", False, False),
        ("card_declined", "lost_card", True, False),
        ("card_declined", "stolen_card", True, False),
        ("expired_card", None, True, False),
        ("authentication_required", "authentication_required", False, True),
    ],
)
def test_a_decline_says_whether_another_card_or_the_owner_is_needed(code, decline, hard, needs_owner):
    failure = failure_of("why", status=402, error={"code": code, "decline_code": decline}, headers={})
    assert isinstance(failure, StripeCardDeclined)
    assert (failure.is_hard, failure.needs_owner) == (hard, needs_owner)
