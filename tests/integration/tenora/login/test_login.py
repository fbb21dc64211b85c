"""`tenora login` and `logout` against the real console, with a person who confirms the code in a browser."""

import json
import stat
from types import SimpleNamespace
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner

from tenora.cli import main
from tenora.login import command
from tenora.profiles import profiles_file, read_profiles
from tests.fixtures.control_plane.browser import join


@pytest.fixture
def tenora(monkeypatch, tmp_path):
    """Run the command as a user with no profile yet. The pause between polls is short enough for the server's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("API_KEY", "CONTROL_URL", "GATEWAY_URL", "PROFILE"):
        monkeypatch.delenv(f"TENORA_{name}", raising=False)
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=lambda _: None))
    return lambda *arguments: CliRunner().invoke(main, arguments)


@pytest.fixture
def confirming(monkeypatch):
    """Let this person confirm the code in the browser that the command opens."""

    def with_person(person) -> None:
        def launch(url: str) -> None:
            at = urlsplit(url)
            person.browser.open(f"{at.path}?{at.query}")
            person.browser.send("Go on").raise_for_status()
            person.browser.send("Confirm").raise_for_status()

        monkeypatch.setattr(click, "launch", launch)

    return with_person


def document(done) -> dict:
    """What --json printed, among the log lines of this process's API."""
    return json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{\n"))[0]


def test_a_person_signs_the_command_in_and_out(api, tenora, confirming):
    confirming(join(api, api.tenant(), "developer"))
    done = tenora("login", "--control-url", api.url, "--label", "laptop", "--browser", "--json")
    assert done.exit_code == 0, done.output
    kept = read_profiles()["default"]
    assert document(done) | {"scopes": []} == {
        "profile": "default", "scopes": [], "tenant": "Acme", "control_url": api.url,
        "gateway_url": "http://127.0.0.1:8080", "key_id": kept.key_id,
    }  # fmt: skip
    assert kept.api_key not in done.output
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600

    assert "requests_per_minute" in tenora("quota").output
    listed = document(tenora("keys", "list", "--json"))["data"]
    assert listed[0]["name"] == "tenora login on laptop"

    assert tenora("logout").exit_code == 0
    assert read_profiles() == {}
    assert api.client(kept.api_key).get("/api/v1/me").status_code == 401
    again = tenora("logout")
    assert (again.exit_code, "there is no profile 'default'" in again.stderr) == (1, True)
    assert "run 'tenora login'" in tenora("quota", "--control-url", api.url).stderr


def test_another_sign_in_under_the_same_name_revokes_the_key_before(api, tenora, confirming):
    confirming(join(api, api.tenant(), "owner"))
    first = ("login", "--control-url", api.url, "--browser")
    assert tenora(*first).exit_code == 0
    before = read_profiles()["default"]
    assert tenora(*first, "--profile", "other").exit_code == 0
    assert api.client(before.api_key).get("/api/v1/me").status_code == 200
    assert tenora("login", "--browser").exit_code == 0, "the address is that of the profile"
    assert api.client(before.api_key).get("/api/v1/me").status_code == 401
    assert tenora("quota").exit_code == tenora("quota", "--profile", "other").exit_code == 0
    missing = tenora("quota", "--profile", "none")
    assert (missing.exit_code, "tenora login --profile none" in missing.stderr) == (2, True)


def test_a_key_that_an_owner_has_revoked_is_signed_out_as_well(api, tenora, confirming):
    tenant = api.tenant()
    confirming(join(api, tenant, "owner"))
    assert tenora("login", "--control-url", api.url, "--browser").exit_code == 0
    tenant.http.delete(f"/api/v1/api-keys/{read_profiles()['default'].key_id}").raise_for_status()
    assert tenora("quota").exit_code == 1
    assert tenora("logout").exit_code == 0
    assert read_profiles() == {}


def test_a_sign_in_that_is_not_confirmed_in_time_keeps_nothing(api, tenora, module_engine, monkeypatch):
    def expire(_: float) -> None:
        with module_engine.begin() as connection:
            connection.exec_driver_sql("UPDATE device_authorizations SET expires_at = now()")

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=expire))
    done = tenora("login", "--control-url", api.url)
    assert (done.exit_code, "Run 'tenora login' again" in done.stderr) == (1, True)
    assert f"Open {api.url}/login-code and type the code" in done.stderr
    assert not profiles_file().exists()
