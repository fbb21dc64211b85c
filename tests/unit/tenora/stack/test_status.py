"""The status names the running platform's own addresses, and secrets only where they are asked for."""

import json

import pytest

from tenora.settings import StackSettings
from tenora.stack import daemon, status
from tenora.stack.definition import Stack
from tenora.stack.secrets_file import choose_ports, load_secrets


@pytest.fixture
def settings(tmp_path, monkeypatch) -> StackSettings:
    """A home whose platform was started with other ports than the settings have now."""
    settings = StackSettings(home=tmp_path, gateway_port=8080, control_port=8081)
    monkeypatch.setattr(status, "is_up", lambda _: True)
    monkeypatch.setattr(status, "is_supervised", lambda _: True)
    load_secrets(settings.root)
    choose_ports(daemon.run_folder(settings), gateway=18190, control=18191)
    (daemon.run_folder(settings) / "state.json").write_text(json.dumps({"programs": {"web": {"state": "ready"}}}))
    (settings.root / "admin-key").write_text("tnr_admin_x\n")
    return settings


def test_the_addresses_are_those_of_the_running_platform(settings):
    shown = status.read_status(settings)
    assert (shown["gateway_url"], shown["control_url"]) == ("http://127.0.0.1:18190", "http://127.0.0.1:18191")


def test_the_admin_key_and_passwords_are_shown_only_with_secrets(settings):
    assert status.read_status(settings, secrets=True)["admin_key"] == "tnr_admin_x"
    assert "@" in status.read_status(settings, secrets=True)["redis_url"]
    shown = status.read_status(settings)
    assert "admin_key" not in shown
    assert "@" not in shown["postgres_dsn"] + shown["redis_url"]


def test_what_a_dead_supervisor_wrote_is_not_ready(settings, monkeypatch):
    ready = {"id": "rep_1", "state": "ready"}
    monkeypatch.setattr(Stack, "replicas", lambda _: [ready])
    assert status.read_status(settings)["ready"]
    monkeypatch.setattr(status, "is_supervised", lambda _: False)
    assert not status.read_status(settings)["ready"]
