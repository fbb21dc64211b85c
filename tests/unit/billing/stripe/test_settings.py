"""A live key and a simulator never meet, and wrong settings say what to do."""

import pytest

from billing.stripe.client import StripeAccount
from billing.stripe.settings import StripeSettings
from core.errors import InvalidSettings

SIMULATOR = "http://127.0.0.1:8090"
LIVE, RESTRICTED = "sk_live_0123456789", "rk_live_0123456789"
SECRET = "whsec_0123456789abcdef"


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"API_KEY": LIVE, "API_BASE": SIMULATOR}, "stripe_api_base", "sk_test_"),
        ({"API_KEY": RESTRICTED, "API_BASE": SIMULATOR}, "stripe_api_base", "Unset"),
        ({"MODE": "live", "API_BASE": SIMULATOR}, "stripe_api_base", "to test"),
        ({"API_KEY": "pk_test_0123456789"}, "stripe_api_key", "sk_live_"),
        ({"API_BASE": f"{SIMULATOR}/v1"}, "stripe_api_base", "without a path"),
        ({"API_BASE": "file:///etc/passwd"}, "stripe_api_base", "scheme://host"),
        ({"WEBHOOK_SECRET": "secret"}, "stripe_webhook_secret", "whsec_"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_field_and_fix(monkeypatch, changes, field, fix):
    for name, value in changes.items():
        monkeypatch.setenv(f"TENORA_STRIPE_{name}", value)
    with pytest.raises(InvalidSettings) as refused:
        StripeSettings()
    (problem,) = refused.value.problems
    assert f"TENORA_{field.upper()}" in problem
    assert fix in problem


def test_a_live_key_alone_and_a_test_key_with_a_simulator_are_accepted():
    assert StripeSettings(stripe_api_key="sk_live_0123456789").livemode
    both = StripeSettings(stripe_api_key="sk_test_0123456789", stripe_api_base=SIMULATOR)
    assert not both.livemode
    assert "0123456789" not in repr(both)


def test_payments_are_set_up_by_the_key_of_the_worker_or_the_secret_of_the_web_process():
    assert not StripeSettings().set_up
    assert not StripeSettings(stripe_mode="live").set_up
    assert StripeSettings(stripe_api_key="sk_test_0123456789").set_up
    assert StripeSettings(stripe_webhook_secret=SECRET).set_up


def test_both_secrets_are_accepted_during_a_rotation():
    settings = StripeSettings(stripe_webhook_secret=SECRET, stripe_webhook_secret_previous="whsec_fedcba9876543210")
    assert settings.webhook_secrets == (SECRET, "whsec_fedcba9876543210")
    assert StripeSettings(stripe_webhook_secret=SECRET).webhook_secrets == (SECRET,)


def test_without_a_key_there_is_no_account():
    with pytest.raises(ValueError, match="TENORA_STRIPE_API_KEY"):
        StripeAccount(StripeSettings())
