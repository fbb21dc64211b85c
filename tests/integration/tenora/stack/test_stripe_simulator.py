"""One machine has a Stripe simulator unless its operator has a key of Stripe's."""

import json

import pytest

from billing.stripe.client import StripeAccount
from billing.stripe.settings import StripeSettings
from tenora.settings import StackSettings
from tenora.stack import daemon, status
from tenora.stack.definition import STRIPE_SIMULATOR, Stack
from tenora.stack.secrets_file import choose_ports, load_secrets
from tests.conftest import running


def names(stack: Stack) -> set[str]:
    return {program.name for program in stack.programs()}


def test_the_settings_of_the_stack_lead_our_client_to_a_simulator_that_keeps_its_state(define, monkeypatch, tmp_path):
    stack = define()
    (program,) = [each for each in stack.programs() if each.name == STRIPE_SIMULATOR]
    environment = stack.environment()
    assert environment["TENORA_STRIPE_API_BASE"] == stack.addresses.stripe_simulator_url
    for name in ("TENORA_STRIPE_API_BASE", "TENORA_STRIPE_API_KEY"):
        monkeypatch.setenv(name, environment[name])
    with running(program):
        made = StripeAccount(StripeSettings()).create_customer(our_id="tn_1", name="Ada", email=None, key="k")
    with running(program):
        assert StripeAccount(StripeSettings()).customer(made.id) == made
    assert (tmp_path / "stripe" / "state.sqlite3").exists()


def test_with_a_key_of_stripes_there_is_no_simulator(define, monkeypatch):
    monkeypatch.setenv("TENORA_STRIPE_API_KEY", "sk_test_0123456789")
    stack = define()
    assert STRIPE_SIMULATOR not in names(stack)
    assert "TENORA_STRIPE_API_BASE" not in stack.environment()
    (web,) = [each for each in stack.programs() if each.name == "web"]
    assert web.env["TENORA_STRIPE_MODE"] == "test", "it has no key that would say so"


def test_the_mode_of_the_operators_key_is_that_of_the_webhooks(define, monkeypatch):
    monkeypatch.setenv("TENORA_STRIPE_API_KEY", "rk_live_0123456789")
    (web,) = [each for each in define().programs() if each.name == "web"]
    assert web.env["TENORA_STRIPE_MODE"] == "live"


def test_a_live_key_with_a_simulators_address_stops_the_start(define, monkeypatch):
    monkeypatch.setenv("TENORA_STRIPE_API_KEY", "sk_live_0123456789")
    monkeypatch.setenv("TENORA_STRIPE_API_BASE", "http://127.0.0.1:8090")
    with pytest.raises(ValueError, match="TENORA_STRIPE_API_BASE names a simulator"):
        define()


@pytest.mark.parametrize("runs", [True, False])
def test_the_status_shows_the_address_of_a_simulator_that_runs(tmp_path, monkeypatch, runs):
    settings = StackSettings(home=tmp_path)
    monkeypatch.setattr(status, "is_up", lambda _: True)
    load_secrets(settings.root)
    ports = choose_ports(daemon.run_folder(settings))
    programs = {STRIPE_SIMULATOR: {"state": "ready"}} if runs else {"web": {"state": "ready"}}
    (daemon.run_folder(settings) / "state.json").write_text(json.dumps({"programs": programs}))
    shown = status.read_status(settings)
    assert shown.get("stripe_simulator_url") == (f"http://127.0.0.1:{ports['stripe_simulator']}" if runs else None)
    assert shown["gateway_url"]
    line = status.payments_line(shown)
    assert line is None if not runs else ("Stripe simulator" in line and "no real money" in line)


def test_the_simulator_posts_signed_events_to_the_control_plane(define, monkeypatch):
    stack = define()
    (program,) = [each for each in stack.programs() if each.name == STRIPE_SIMULATOR]
    assert f"{stack.addresses.control_url}/webhooks/stripe" in program.argv
    secret = stack.environment()["TENORA_STRIPE_WEBHOOK_SECRET"]
    assert program.env["TENORA_STRIPE_WEBHOOK_SECRET"] == secret
    assert secret.startswith("whsec_")
    assert secret not in " ".join(program.argv)
