"""Outside providers through the API: sealed keys, addresses that lead nowhere inward, and models as base models."""

import base64

import msgspec
import pytest
from pydantic import SecretStr

from control_plane.registry import base_models
from control_plane.settings import WebSettings
from core import redis_keys
from core.contracts.routes import BaseModelRoute
from core.contracts.usage import TokenCosts
from core.db import unit_of_work
from core.provider_settings import ProviderSettings
from tests.fixtures.control_plane.api import control_settings

ROOT = "/api/v1/admin/providers"
INWARD = "127.0.0.1:9"
NEW = {"name": "acme", "kind": "openai", "url": f"http://{INWARD}/v1/", "key": "sk-secret", "requests_max": 4}
COSTS = {"input_nanos": 150, "cached_input_nanos": 75, "output_nanos": 600}
PROVIDERS = ProviderSettings(
    provider_secret=SecretStr("secret-of-the-tests"), provider_inward_hosts=(INWARD, "127.0.0.1:10")
)  # fmt: skip


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    web = WebSettings(control_port=0, acknowledge_wait_ms=0)
    return control_settings(postgres_settings, redis_settings, s3_settings, web=web, providers=PROVIDERS)


@pytest.fixture
def provider(api) -> dict:
    return api.admin.post(ROOT, json=NEW).raise_for_status().json()


@pytest.fixture
def model(api, base, provider) -> dict:
    body = {"id": "acme-mini", "model": "mini-2026", "counts_like": base.id, "context_tokens": 32_000, **COSTS}
    return api.admin.post(f"{ROOT}/acme/models", json=body).raise_for_status().json()


@pytest.fixture
def published(relay, redis):
    def route(base_model: str) -> BaseModelRoute:
        while relay.run_once():
            pass
        return msgspec.json.decode(redis.hget(redis_keys.snapshot("base_models"), base_model), type=BaseModelRoute)

    return route


def test_a_key_is_stored_encrypted_and_never_shown(api, provider, redis, model, published):
    assert "sk-secret" not in api.admin.get(ROOT).text
    assert "sk-secret" not in api.admin.get("/api/v1/admin/audit-events").text
    sealed = published("acme-mini").provider.sealed_key
    assert b"sk-secret" not in redis.hget(redis_keys.snapshot("base_models"), "acme-mini")
    assert PROVIDERS.sealer().open(base64.b64decode(sealed), provider["id"]) == "sk-secret"


def test_a_model_is_published_as_a_base_model_with_where_it_is_served(base, provider, model, published):
    route = published("acme-mini")
    assert (route.context_tokens, route.tokenizer_sha256) == (32_000, published(base.id).tokenizer_sha256)
    served = route.provider
    assert (served.provider_id, served.url, served.model) == (provider["id"], f"http://{INWARD}/v1", "mini-2026")
    assert (served.requests_max, served.margin_percent, served.costs) == (4, 20, TokenCosts(**COSTS))
    assert published(base.id).provider is None


def test_a_changed_provider_is_published_with_each_of_its_models(api, provider, model, published):
    before = published("acme-mini").provider
    changed = {"key": "sk-other", "requests_max": 0, "spend_nanos_per_month": 10**12}
    assert api.admin.patch(f"{ROOT}/acme", json=changed).raise_for_status().json()["requests_max"] == 0
    after = published("acme-mini").provider
    assert (after.requests_max, after.spend_nanos_per_month) == (0, 10**12)
    assert after.sealed_key != before.sealed_key
    api.admin.patch(f"{ROOT}/acme/models/acme-mini", json={"output_nanos": 700}).raise_for_status()
    assert published("acme-mini").provider.costs.output_nanos == 700


@pytest.mark.parametrize("url", ["http://127.0.0.1:10/v1", f"https://{INWARD}/v1"])
def test_a_stored_key_goes_to_no_other_server(api, provider, model, published, url):
    refused = api.admin.patch(f"{ROOT}/acme", json={"url": url})
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (400, "invalid_value", "key")
    assert published("acme-mini").provider.url == f"http://{INWARD}/v1"
    api.admin.patch(f"{ROOT}/acme", json={"url": f"http://{INWARD}/v2/"}).raise_for_status()
    assert published("acme-mini").provider.url == f"http://{INWARD}/v2"
    api.admin.patch(f"{ROOT}/acme", json={"url": url, "key": "sk-other"}).raise_for_status()
    assert published("acme-mini").provider.url == url


def test_it_can_have_prices_and_neither_adapters_nor_pools(api, engine, base, model):
    with unit_of_work(engine) as session:
        assert "acme-mini" in base_models.rank_classes(session)
    adapter = api.tenant().http.post("/api/v1/adapters", json={"name": "bot", "base_model": "acme-mini"})
    assert (adapter.status_code, adapter.json()["code"]) == (400, "base_model_not_found")
    pool = api.admin.post("/api/v1/admin/pools", json={"name": "chat", "base_model": "acme-mini"})
    assert (pool.status_code, pool.json()["code"], pool.json()["param"]) == (400, "base_model_is_outside", "base_model")


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("http://api.example.com/v1", 400, "invalid_provider_url"),
        ("ftp://api.example.com", 400, "invalid_provider_url"),
        ("https://user:password@example.com/v1", 400, "invalid_provider_url"),
        ("https://example.com/v1?key=x", 400, "invalid_provider_url"),
        ("https://bad host/v1", 400, "invalid_provider_url"),
        ("https://127.0.0.1/v1", 422, "provider_address_not_public"),
        ("https://10.0.0.1:8443/v1", 422, "provider_address_not_public"),
        ("https://169.254.169.254/latest", 422, "provider_address_not_public"),
        ("https://[::1]/v1", 422, "provider_address_not_public"),
        ("https://[::ffff:10.0.0.1]/v1", 422, "provider_address_not_public"),
        ("https://no-such-host.invalid/v1", 422, "provider_host_not_found"),
        ("http://127.0.0.1:11/v1", 400, "invalid_provider_url"),
    ],
)
def test_an_inward_or_unreadable_url_is_refused_and_nothing_is_written(api, url, status, code):
    refused = api.admin.post(ROOT, json=NEW | {"url": url})
    assert (refused.status_code, refused.json()["code"], refused.json()["param"]) == (status, code, "url")
    assert api.admin.get(ROOT).json()["data"] == []


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"counts_like": "missing"}, 400, "base_model_not_found", "counts_like"),
        ({"counts_like": "acme-mini"}, 400, "base_model_not_found", "counts_like"),
        ({"id": "acme-mini"}, 409, "base_model_exists", "id"),
        ({"id": "Bad Id"}, 400, None, "id"),
    ],
)
def test_a_model_that_cannot_be_counted_or_has_a_name_already_is_refused(
    api, base, model, changes, status, code, param
):
    body = {"id": "acme-large", "model": "large", "counts_like": base.id, "context_tokens": 32_000, **COSTS}
    refused = api.admin.post(f"{ROOT}/acme/models", json=body | changes)
    assert (refused.status_code, refused.json()["param"]) == (status, param), refused.text
    assert code in (None, refused.json()["code"])
    assert [each["base_model"] for each in api.admin.get(f"{ROOT}/acme/models").json()["data"]] == ["acme-mini"]


def test_a_second_provider_of_a_name_and_a_missing_one_are_refused(api, provider):
    again = api.admin.post(ROOT, json=NEW)
    assert (again.status_code, again.json()["code"]) == (409, "provider_exists")
    missing = api.admin.patch(f"{ROOT}/none", json={"requests_max": 1})
    assert (missing.status_code, missing.json()["code"]) == (404, "provider_not_found")
    of_another = api.admin.patch(f"{ROOT}/acme/models/none", json={"margin_percent": 1})
    assert (of_another.status_code, of_another.json()["code"]) == (404, "provider_model_not_found")


class TestWithoutASecret:
    @pytest.fixture
    def settings(self, postgres_settings, redis_settings, s3_settings):
        web = WebSettings(control_port=0, acknowledge_wait_ms=0)
        return control_settings(postgres_settings, redis_settings, s3_settings, web=web)

    def test_no_provider_is_accepted(self, api):
        refused = api.admin.post(ROOT, json=NEW)
        assert (refused.status_code, refused.json()["code"]) == (422, "providers_not_set_up")
