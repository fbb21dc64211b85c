"""A webhook of Stripe's that arrives while Postgres is away."""

import contextlib
import secrets

import pytest
from alembic import command
from pydantic import SecretStr

from billing.payments.settings import WebhookSettings
from billing.stripe.settings import StripeSettings
from control_plane import database_roles
from control_plane.settings import WebSettings
from core import db
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import alembic_config, create_database, running
from tests.fixtures.control_plane.api import control_settings, running_api
from tests.fixtures.least_privilege import POSTGRES_ROLES
from tests.fixtures.stripe_simulator import TEST_KEY, running_simulator
from tests.integration.billing.payments.conftest import PaymentStage
from tests.integration.billing.payments.test_events import top_up_page
from tests.integration.control_plane.payments.conftest import SECRET
from tests.integration.control_plane.payments.test_payments import body_of, post

pytestmark = pytest.mark.timeout(180)


@pytest.mark.scenario(153)
def test_a_webhook_that_meets_a_stopped_postgres_is_refused_and_handled_once_when_it_comes_again(
    redis_settings, s3_settings, tmp_path
):
    server = embedded_servers.postgres(
        tmp_path / "pg", tmp_path, port=free_port(), password=secrets.token_hex(8), roles=POSTGRES_ROLES
    )
    with contextlib.ExitStack() as stack:
        simulator = stack.enter_context(running_simulator(tmp_path / "home"))
        postgres = stack.enter_context(contextlib.ExitStack())
        postgres.enter_context(running(server.program))
        settings = create_database(server.url, "outage")
        command.upgrade(alembic_config(settings), "head")
        engine = db.connect(settings)
        stack.callback(engine.dispose)
        database_roles.grant_privileges(engine)
        port = free_port()
        address, types = f"http://127.0.0.1:{port}/webhooks/stripe", ["checkout.session.completed"]
        simulator.control("POST", "listener", {"url": address, "secrets": [SECRET], "types": types})
        stripe = StripeSettings(
            stripe_api_key=SecretStr(TEST_KEY),
            stripe_api_base=simulator.url,
            stripe_webhook_secret=SecretStr(SECRET),
        )
        api = stack.enter_context(
            running_api(
                control_settings(
                    settings, redis_settings, s3_settings,
                    web=WebSettings(control_port=port, acknowledge_wait_ms=0),
                    stripe=stripe, webhooks=WebhookSettings(),
                )
            )
        )  # fmt: skip
        stage = PaymentStage(engine, simulator)
        tenant = stage.tenant(card=None)
        _, page = top_up_page(stage, tenant)
        simulator.control("POST", "delivery", {"paused": True, "copies": 2})

        postgres.close()
        simulator.control("POST", f"checkout/{page}", {"card": "4242424242424242"})
        assert simulator.control("POST", "delivery/send")["accepted"] == 0
        refused = post(api, body_of(), SECRET)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")

        stack.enter_context(running(server.program))
        assert stage.value("SELECT count(*) FROM stripe_events") == 0
        assert simulator.control("POST", "delivery/send")["accepted"] == 2
        while stage.events.run_once():
            pass
        assert [row["state"] for row in stage.rows("SELECT state FROM stripe_events")] == ["handled"]
        assert stage.bought(tenant) == [2_500]
