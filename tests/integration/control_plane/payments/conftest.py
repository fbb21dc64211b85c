"""The API with the Stripe simulator as a process, and a stage that works like the billing worker."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from billing.payments.settings import WebhookSettings
from billing.stripe.settings import StripeSettings
from control_plane.settings import WebSettings
from tests.fixtures.control_plane.api import Api, control_settings
from tests.fixtures.stripe_simulator import RunningSimulator, running_simulator
from tests.integration.billing.payments.conftest import PaymentStage

SECRET, OLD = "whsec_of_the_endpoint", "whsec_of_last_month"
BYTES_MAX = 4_096


@pytest.fixture(scope="session")
def simulator(tmp_path_factory) -> Iterator[RunningSimulator]:
    with running_simulator(tmp_path_factory.mktemp("stripe") / "home") as simulator:
        yield simulator


@pytest.fixture
def api(postgres_settings, redis_settings, s3_settings, simulator, api_servers) -> Iterator[Api]:
    stripe = StripeSettings(  # no key: the billing worker alone calls Stripe
        stripe_api_base=simulator.url,
        stripe_webhook_secret=SecretStr(SECRET),
        stripe_webhook_secret_previous=SecretStr(OLD),
    )
    settings = control_settings(
        postgres_settings,
        redis_settings,
        s3_settings,
        web=WebSettings(control_port=0, acknowledge_wait_ms=0),
        stripe=stripe,
        webhooks=WebhookSettings(payments_page_wait_ms=200, payments_webhook_bytes_max=BYTES_MAX),
    )
    with api_servers.lend(settings) as running:
        yield running


@pytest.fixture
def stage(engine, simulator) -> PaymentStage:
    return PaymentStage(engine, simulator)
