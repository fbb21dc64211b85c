"""What the billing worker requires before it takes payments."""

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from billing.payments.background import loops
from billing.payments.settings import PaymentSettings
from billing.stripe.settings import StripeSettings
from core.errors import InvalidSettings


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "TENORA_CONTROL_PUBLIC_URL is not set"),
        ({"control_public_url": "https://api.example.com", "payments_lease_s": 35}, "TENORA_PAYMENTS_LEASE_S is 35"),
    ],
)
def test_a_setting_without_which_payments_would_fail_is_named_at_the_start(given, named):
    stripe = StripeSettings(stripe_api_key=SecretStr("sk_test_of_the_tests"))
    engine = sa.create_engine("postgresql+psycopg://")
    with pytest.raises(InvalidSettings, match=named):
        loops(engine, stripe, PaymentSettings(**given))


@pytest.mark.parametrize("address", ["api.example.com", "https://api.example.com/", "https://a b", "https://a?x=1"])
def test_an_address_to_which_no_token_can_be_added_is_refused(address):
    with pytest.raises(InvalidSettings, match="CONTROL_PUBLIC_URL"):
        PaymentSettings(control_public_url=address)
