"""Which secrets reach which program of one machine, those in the operator's own environment included."""

import os
import sys
from typing import get_args

import pytest
from pydantic import SecretStr

from tenora.docs.settings_page import PROCESSES
from tenora.stack.definition import STRIPE_SIMULATOR
from tenora.stack.program import Program

POSTGRES, REDIS, PEPPER = "TENORA_POSTGRES_DSN", "TENORA_REDIS_URL", "TENORA_KEY_PEPPER"
S3 = {"TENORA_S3_ACCESS_KEY", "TENORA_S3_SECRET_KEY"}
SALT, ENGINE, SIGNING = "TENORA_SALT_SECRET", "TENORA_ENGINE_KEY", "TENORA_SNAPSHOT_SIGNING_KEY"
NOTIFICATIONS, SMTP = "TENORA_NOTIFICATIONS_KEY", "TENORA_SMTP_PASSWORD"
OTLP, PROVIDERS = "TENORA_OTLP_HEADERS", "TENORA_PROVIDER_SECRET"
STRIPE_KEY, WEBHOOKS = "TENORA_STRIPE_API_KEY", "TENORA_STRIPE_WEBHOOK_SECRET"
NEEDS = {
    "migrate": {POSTGRES},
    "admin-key": {POSTGRES, PEPPER},
    "publish": {POSTGRES, REDIS, PEPPER, *S3, SIGNING},
    "web": {POSTGRES, REDIS, PEPPER, *S3, NOTIFICATIONS, SMTP, PROVIDERS, WEBHOOKS},
    "worker": {POSTGRES, REDIS, PEPPER, *S3, SIGNING},
    "fleet": {POSTGRES, REDIS},
    "batch": {POSTGRES, PEPPER, *S3},
    "billing": {POSTGRES, REDIS, NOTIFICATIONS, SMTP, STRIPE_KEY},
    "gateway": {REDIS, PEPPER, SALT, ENGINE, OTLP, PROVIDERS},
    "replica": {REDIS, *S3, ENGINE},
    STRIPE_SIMULATOR: {WEBHOOKS},
}
"""Servers and steps that are not here need none."""


def secret_settings() -> set[str]:
    """Every setting of any process that is a secret or an address with a password."""
    fields = {
        name: info for process in PROCESSES for part in process.settings for name, info in part.model_fields.items()
    }
    secret = {name for name, info in fields.items() if SecretStr in (info.annotation, *get_args(info.annotation))}
    return {f"TENORA_{name}".upper() for name in secret | {"postgres_dsn", "redis_url", "s3_access_key"}}


@pytest.mark.parametrize("simulated", [True, False])
def test_each_program_gets_the_secrets_that_it_needs_and_no_other(define, monkeypatch, simulated):
    secret = "whsec_0123456789"
    values = {STRIPE_KEY: "sk_live_0123456789", WEBHOOKS: secret, f"{WEBHOOKS}_PREVIOUS": secret}
    for name in secret_settings() - ({STRIPE_KEY} if simulated else set()):
        monkeypatch.setenv(name, values.get(name, "of the operator"))
    for program in define().programs():
        environment = {name for name in os.environ if name not in program.withheld} | set(program.env)
        found = {name.removesuffix("_PREVIOUS") for name in environment & secret_settings()}
        assert found == NEEDS.get(program.name, set()), program.name


def test_a_program_starts_without_what_is_withheld(tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_STRIPE_API_KEY", "sk_live_0123456789")
    monkeypatch.setenv("TENORA_HARMLESS", "1")
    code = "import os; print(sorted(name for name in os.environ if name.startswith('TENORA_')))"
    program = Program(
        name="prints", argv=(sys.executable, "-c", code), ready=lambda: True, log=tmp_path / "log",
        env={"TENORA_OWN": "1"}, withheld=frozenset({"TENORA_STRIPE_API_KEY"}),
    )  # fmt: skip
    assert program.start().wait(30) == 0
    shown = program.log.read_text()
    assert "TENORA_HARMLESS" in shown
    assert "TENORA_OWN" in shown
    assert "STRIPE" not in shown
