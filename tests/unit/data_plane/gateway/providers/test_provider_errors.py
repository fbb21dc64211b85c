"""What a provider's status means to a caller: its own words never reach one, and a pause that it asks for does."""

import json

import pytest

from core.errors import InvalidRequest
from data_plane.gateway.providers.errors import ProviderBusy, ProviderFailed, refusal

SECRET = "your key sk-123 asked about a prompt"


def refused(status: int, code: str | None = None, **headers: str):
    raw = json.dumps({"error": {"message": SECRET, "code": code, "type": "any_type"}}).encode()
    return refusal("prv_1", status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


@pytest.mark.parametrize(
    ("status", "kind", "code", "may_pass"),
    [
        (302, ProviderFailed, "provider_failed", False),
        (401, ProviderFailed, "provider_key_refused", False),
        (403, ProviderFailed, "provider_key_refused", False),
        (404, ProviderFailed, "provider_model_missing", False),
        (402, ProviderBusy, "provider_spent", False),
        (429, ProviderBusy, "provider_busy", True),
        (529, ProviderBusy, "provider_busy", True),
        (500, ProviderFailed, "provider_failed", True),
        (502, ProviderFailed, "provider_failed", True),
        (418, ProviderFailed, "provider_failed", False),
    ],
)
def test_each_status_has_one_meaning(status, kind, code, may_pass):
    error = refused(status)
    assert (type(error), error.code, error.may_pass) == (kind, code, may_pass)
    assert SECRET not in error.message


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_combination_is_the_callers(status):
    error = refused(status)
    assert (type(error), error.code) == (InvalidRequest, "request_refused")
    assert SECRET not in error.message


def test_an_account_without_money_is_not_asked_again():
    error = refused(429, "insufficient_quota", retry_after="1")
    assert (error.code, error.may_pass) == ("provider_spent", False)


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "7", "retry_after_ms": "250"}, 0.25),
        ({"retry_after": "999999"}, 300),
        ({"retry_after": "-1"}, None),
        ({"retry_after": "Fri, 31 Dec 1999 23:59:59 GMT"}, None),
        ({"retry_after": "Fri, 31 Dec 2999 23:59:59 GMT"}, 300),
        ({"retry_after": "Fri, 31 Dec 99999999999999 23:59:59 GMT"}, None),
        ({"retry_after": "9" * 400}, None),
        ({}, None),
    ],
)
def test_the_pause_that_a_provider_asks_for_is_read_within_bounds(headers, after_s):
    assert refused(429, **headers).retry_after_s == after_s


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[]", b'{"error": "text"}', b'{"error": {"code": 7}}', b'{"error": ' + b"[" * 9999]
)
def test_a_body_of_any_form_is_read(raw):
    assert refusal("prv_1", 500, {}, raw).code == "provider_failed"
