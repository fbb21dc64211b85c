"""A rotation of the installation's key: after the command, the old key is not needed any longer."""

import os

import pytest

from billing.notifications.endpoints import reseal
from billing.notifications.signing_secrets import SecretBox, SecretUnreadable
from control_plane import database_roles
from tests.fixtures import fork_server
from tests.fixtures.least_privilege import user_url
from tests.integration.billing.notifications.conftest import BOX

NEW = SecretBox([b"another-key-here"])


def opened(alerts, box: SecretBox, endpoint: str) -> str:
    return box.open(bytes(alerts.state(endpoint)["signing_secret"]), endpoint)


def test_after_the_command_the_new_key_alone_opens_every_secret(alerts, postgres_settings):
    endpoints = [alerts.endpoint("tn_1", f"https://example.com/{number}") for number in range(3)]
    alerts.endpoint("tn_1", "owner@example.com")
    environment = os.environ | {
        "TENORA_POSTGRES_DSN": user_url(postgres_settings.postgres_dsn, database_roles.BILLING),
        "TENORA_NOTIFICATIONS_KEY": "another-key-here",
        "TENORA_NOTIFICATIONS_KEY_PREVIOUS": "key-of-the-tests",
    }
    done = fork_server.run("billing", "reseal-secrets", env=environment)
    assert (done.returncode, done.stdout) == (0, "3 webhooks encrypted with the current key\n")
    for endpoint, secret in endpoints:
        assert opened(alerts, NEW, endpoint) == secret
        with pytest.raises(SecretUnreadable):
            opened(alerts, BOX, endpoint)


def test_a_secret_that_no_key_opens_stops_the_command_and_keeps_everything(alerts):
    endpoint, secret = alerts.endpoint("tn_1", "https://example.com/")
    with pytest.raises(SecretUnreadable):
        reseal(alerts.engine, NEW)
    assert opened(alerts, BOX, endpoint) == secret
