"""A page of another origin uploads an adapter as browsers do: preflights first, over sockets, to the API and to S3."""

import secrets

import httpx
import pytest
from pydantic import SecretStr

from control_plane import operations
from control_plane.settings import WebSettings
from core.errors import InvalidSettings
from core.settings import CorsSettings, S3Settings
from tenora.stack import embedded_servers
from tenora.stack.program import free_port
from tests.conftest import running
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.uploads.peft_adapters import declared_files, write_adapter

CONSOLE = "https://console.example.com"
OTHERS = ["https://evil.example", "https://console.example.com.evil.example", "http://console.example.com", "null"]


@pytest.fixture(scope="module")
def open_s3(tmp_path_factory):
    """An S3 server whose bucket accepts uploads from pages of the console."""
    home = tmp_path_factory.mktemp("cors")
    server = embedded_servers.s3(
        home / "s3", home, port=free_port(), access_key="tests", secret_key="s" * 16, bucket="tenora",
        cors_origins=(CONSOLE,),
    )  # fmt: skip
    with running(server.program):
        yield S3Settings(
            s3_endpoint=server.url,
            s3_access_key="tests",
            s3_secret_key=SecretStr("s" * 16),
            s3_checksum_header=False,
        )


@pytest.fixture
def settings(postgres_settings, redis_settings, open_s3):
    cors = CorsSettings(control_cors_origins=(CONSOLE, "http://localhost:5173"))
    return control_settings(
        postgres_settings, redis_settings, open_s3, web=WebSettings(control_port=0, acknowledge_wait_ms=0), cors=cors
    )


def preflight(url: str, method: str, headers: list[str], origin: str = CONSOLE) -> httpx.Response:
    asked = {"origin": origin, "access-control-request-method": method}
    if headers:
        asked["access-control-request-headers"] = ", ".join(sorted(headers))
    return httpx.options(url, headers=asked)


def allows(answer: httpx.Response, method: str, headers: list[str], origin: str = CONSOLE) -> bool:
    """Whether a browser would continue, by the Fetch standard's rules for a request without credentials."""
    allowed = answer.headers
    methods = {each.strip() for each in allowed.get("access-control-allow-methods", "").split(",")}
    names = {each.strip().lower() for each in allowed.get("access-control-allow-headers", "").split(",")}
    return (
        answer.is_success
        and allowed.get("access-control-allow-origin") in (origin, "*")
        and method in methods
        and {header.lower() for header in headers} <= names
    )


def test_a_page_of_the_console_uploads_an_adapter(api, base, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    folder = write_adapter(tmp_path / "a", base)
    with httpx.Client(headers={"origin": CONSOLE, "authorization": f"Bearer {tenant.key}"}) as page:
        url, sent = f"{api.url}/api/v1/adapters/router/revisions", ["authorization", "content-type", "idempotency-key"]
        assert allows(preflight(url, "POST", sent), "POST", sent)
        announced = page.post(url, json={"files": declared_files(folder)}, headers={"idempotency-key": "k"})
        assert announced.status_code == 201
        assert announced.headers["access-control-allow-origin"] == CONSOLE
        assert "x-request-id" in announced.headers["access-control-expose-headers"]
        for upload in announced.json()["uploads"]:
            sent = [*upload["headers"], "content-type"]
            assert allows(preflight(upload["url"], upload["method"], sent), upload["method"], sent)
            put = httpx.put(
                upload["url"],
                headers=upload["headers"] | {"origin": CONSOLE, "content-type": "application/octet-stream"},
                content=(folder / upload["path"]).read_bytes(),
            )
            assert put.status_code == 200
            assert put.headers["access-control-allow-origin"] in (CONSOLE, "*")
        done = page.post(f"{url}/{announced.json()['id']}/complete")
        assert (done.status_code, done.headers["access-control-allow-origin"]) == (202, CONSOLE)


def test_every_configured_origin_gets_itself_and_a_vary_header(api):
    for origin in api.settings.cors.control_cors_origins:
        answer = preflight(f"{api.url}/api/v1/me", "GET", ["authorization"], origin)
        assert allows(answer, "GET", ["authorization"], origin)
        plain = api.anyone.get("/livez", headers={"origin": origin})
        assert plain.headers["access-control-allow-origin"] == origin
        for each in (answer, plain):
            assert "origin" in each.headers["vary"].lower()
            assert "access-control-allow-credentials" not in each.headers


@pytest.mark.parametrize("origin", OTHERS)
def test_pages_of_other_origins_are_refused(api, origin):
    for method in ("GET", "POST"):
        assert not allows(preflight(f"{api.url}/api/v1/me", method, ["authorization"], origin), method, [], origin)
    assert "access-control-allow-origin" not in api.anyone.get("/livez", headers={"origin": origin}).headers


def test_pages_can_read_refusals(api):
    refused = api.anyone.get("/api/v1/me", headers={"origin": CONSOLE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, CONSOLE)
    absent = api.anyone.get("/nowhere", headers={"origin": CONSOLE})
    assert (absent.status_code, absent.headers["access-control-allow-origin"]) == (404, CONSOLE)


def test_without_configured_origins_every_origin_is_refused(shared_api, s3_settings):
    answer = preflight(f"{shared_api.url}/api/v1/me", "GET", ["authorization"])
    assert not any(name.startswith("access-control-") for name in answer.headers)
    assert not allows(preflight(f"{s3_settings.s3_endpoint}/tenora/uploads/x", "PUT", []), "PUT", [])


def test_preparing_the_bucket_creates_it_and_accepts_a_server_without_cors_rules(settings, capfd):
    from dataclasses import replace

    new = replace(settings, s3=settings.s3.model_copy(update={"s3_bucket": f"new-{secrets.token_hex(4)}"}))
    for _ in range(2):
        assert operations.prepare_bucket(new).endswith(f"open to {CONSOLE}, http://localhost:5173")
    assert "has no CORS rules" in capfd.readouterr().out


@pytest.mark.parametrize(
    "bad",
    ["*", "https://*.example.com", "https://a.example/", "https://A.example", "a.example", "ftp://a.example", "null"],
)
def test_only_exact_origins_can_be_configured(bad):
    with pytest.raises(InvalidSettings, match="is no origin"):
        CorsSettings(control_cors_origins=(CONSOLE, bad))


def test_origins_in_the_environment_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("TENORA_CONTROL_CORS_ORIGINS", f"{CONSOLE}, http://127.0.0.1:3000,http://[::1]:3000")
    assert CorsSettings().control_cors_origins == (CONSOLE, "http://127.0.0.1:3000", "http://[::1]:3000")


@pytest.mark.parametrize("path", ["/api/v1/adapters", "/api/v1/adapters/a/revisions", "/api/v1/admin/plans"])
def test_options_without_a_preflights_headers_is_answered(shared_api, path):
    answer = shared_api.anyone.options(path)
    assert (answer.status_code, "OPTIONS" in answer.headers["allow"]) == (204, True)
