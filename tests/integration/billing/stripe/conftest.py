"""One suite of contract tests for two backends: the simulator in every run, and Stripe's test mode on demand."""

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import stripe
from pydantic import SecretStr

from billing.stripe.client import StripeAccount
from billing.stripe.objects import StripePayment
from billing.stripe.settings import StripeSettings
from tests.fixtures.stripe_simulator import TEST_KEY, RunningSimulator, shapes_checked

LIVE_KEY = "TENORA_STRIPE_LIVE_TEST_KEY"  # of Stripe's test mode


@dataclass(frozen=True)
class StripeStage:
    """Our client and the official SDK on the same account."""

    account: StripeAccount
    sdk: stripe.StripeClient

    def key(self) -> str:
        return f"tenora-tests-{secrets.token_hex(12)}"

    def our_id(self) -> str:
        return f"test_{secrets.token_hex(8)}"

    def customer(self, card: str | None = "pm_card_visa") -> str:
        """A customer with a default card."""
        made = self.account.create_customer(our_id=self.our_id(), name="Ada", email="ada@example.com", key=self.key())
        if card is not None:
            saved = self.sdk.v1.payment_methods.attach(card, {"customer": made.id})
            self.account.set_default_card(made.id, saved.id, key=self.key())
        return made.id

    def charge(
        self, customer: str, *, cents: int = 2_500, our_id: str | None = None, key: str | None = None,
        account: StripeAccount | None = None,
    ) -> StripePayment:  # fmt: skip
        """Charge the customer's card without its owner."""
        card = self.account.newest_card(customer)
        names = {"our_id": our_id or self.our_id(), "key": key or self.key(), "description": "November"}
        charged = account or self.account
        return charged.charge_saved_card(customer, card, amount_cents=cents, currency="usd", **names)

    def just_now(self) -> dict[str, datetime]:
        """The time of creation of what this test made."""
        now = datetime.now(UTC)
        return {"since": now - timedelta(minutes=10), "until": now}


def settings_of(simulator: RunningSimulator, **changes) -> StripeSettings:
    return StripeSettings(stripe_api_key=SecretStr(TEST_KEY), stripe_api_base=simulator.url, **changes)


@pytest.fixture(params=["simulator", pytest.param("test mode", marks=pytest.mark.stripe_live)])
def stage(request: pytest.FixtureRequest) -> Iterator[StripeStage]:
    if request.param == "test mode":
        key = os.environ[LIVE_KEY]
        assert "_test_" in key[:8], f"{LIVE_KEY} must be a key of Stripe's test mode"
        client = stripe.StripeClient(key, max_network_retries=0)
        yield StripeStage(StripeAccount(StripeSettings(stripe_api_key=SecretStr(key), stripe_api_base=None)), client)
        return
    simulator = request.getfixturevalue("shared_simulator")
    with shapes_checked():
        yield StripeStage(StripeAccount(settings_of(simulator)), simulator.sdk())
