"""The how-to pages for tenants, run as they stand there on a platform of real processes."""

import contextlib
import json
import re
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from control_plane.settings import WebSettings
from core import db, redis_keys
from core.settings import RedisSettings
from tests.conftest import running_valkey
from tests.fixtures import processes
from tests.fixtures.control_plane.api import control_settings, running_api
from tests.fixtures.control_plane.ready_revisions import ready_revision
from tests.fixtures.control_plane.worker import running_worker
from tests.fixtures.gateway.tiny_tokenizer import CHATML, tiny_route, tokenizer_json
from tests.fixtures.how_to import run_page
from tests.fixtures.uploads.peft_adapters import tiny_base, write_adapter

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
BASE = "smollm2-135m-instruct"  # as on the pages


@pytest.fixture(scope="module")
def spec():
    route = tiny_route(BASE)
    return msgspec.structs.replace(
        tiny_base(id=BASE), tokenizer_json=tokenizer_json().decode(), chat_template=CHATML,
        bos_token=route.bos_token, eos_token=route.eos_token, vocab_size=route.vocab_size,
    )  # fmt: skip


@pytest.fixture(scope="module")
def platform(module_postgres_settings, s3_settings, spec, tmp_path_factory):
    """(API, gateway): a control plane with its worker, a gateway and a witness replica."""
    folder = tmp_path_factory.mktemp("platform")
    with contextlib.ExitStack() as up:
        redis_url = up.enter_context(running_valkey(folder))
        up.enter_context(Redis.from_url(redis_url)).set(redis_keys.QUOTAS_REBUILT, 1)  # no billing worker runs here
        redis = RedisSettings(redis_url=redis_url)
        settings = control_settings(module_postgres_settings, redis, s3_settings, web=WebSettings(control_port=0))
        api = up.enter_context(running_api(settings))
        up.enter_context(running_worker(settings))
        api.register(spec).raise_for_status()
        up.enter_context(processes.witness(folder, redis_url, base_model=BASE))
        yield api, up.enter_context(processes.gateway(folder, redis_url))


@pytest.fixture
def run(platform, tmp_path):
    """Run a page as a tenant; returns what the page printed."""
    api, gateway = platform

    def run_as(tenant, page: str) -> str:
        variables = {"TENORA_CONTROL_URL": api.url, "TENORA_API_KEY": tenant.key, "GATEWAY_URL": gateway.url}
        return run_page(page, variables, tmp_path)

    return run_as


@pytest.fixture
def engine(module_postgres_settings):
    engine = db.connect(module_postgres_settings)
    yield engine
    engine.dispose()


@pytest.fixture
def serving(platform, spec, engine):
    """Make a tenant whose shop-voice serves the older of two revisions; returns the tenant and that revision's id."""

    def make(**limits: int):
        tenant = platform[0].tenant(**limits)
        adapter_id = tenant.adapter("shop-voice", spec)["id"]
        old, _ = (ready_revision(engine, adapter_id) for _ in range(2))
        tenant.http.put("/api/v1/adapters/shop-voice/aliases/prod", json={"revision": old[0]}).raise_for_status()
        return tenant, old[0]

    return make


def words(printed: str) -> list[str]:
    """The first word of each answer of a model: the witness derives it from the engine name of the revision."""
    return [
        each["choices"][0]["message"]["content"].split()[0]
        for each in map(json.loads, filter(lambda line: line.startswith('{"'), printed.splitlines()))
        if "choices" in each
    ]


def test_an_adapter_is_uploaded_with_curl_alone_and_answers(platform, spec, run, tmp_path):
    write_adapter(tmp_path / "my-adapter", spec, rank=8)
    tenant = platform[0].tenant()
    printed = run(tenant, "upload-by-rest.md")
    assert "\nready\n[]\n" in printed
    assert len(words(printed)) == 1
    (revision,) = tenant.http.get("/api/v1/adapters/shop-voice/revisions").json()["data"]
    assert revision["status"] == "ready"


def test_a_new_revision_is_tried_given_traffic_and_rolled_back(serving, run):
    tenant, old = serving()
    by_id, by_alias, moved, rolled_back = words(run(tenant, "canary-and-roll-back.md"))
    assert by_id == by_alias == moved != rolled_back
    (prod,) = tenant.http.get("/api/v1/adapters/shop-voice/aliases").json()["data"]
    assert (prod["name"], prod["revision"]) == ("prod", old)


def test_a_key_is_rotated_without_an_interruption(platform, serving, run):
    tenant, _ = serving()
    assert len(words(run(tenant, "rotate-a-key.md"))) == 1
    assert tenant.http.get("/api/v1/me").status_code == 200  # the secret before it, during the overlap


def test_the_command_shows_the_account_asks_a_model_and_moves_an_adapter(serving, run):
    tenant, old = serving()
    printed = run(tenant, "use-the-command.md")
    assert re.search(r"^requests_per_minute +0 +600$", printed, re.MULTILINE)
    assert "tnr_live_…" in printed
    asked, as_json, promoted, rolled_back = re.findall("fp[0-9a-f]{12}", printed)
    assert asked == as_json == rolled_back != promoted
    (prod,) = tenant.http.get("/api/v1/adapters/shop-voice/aliases").json()["data"]
    assert prod["revision"] == old


def test_errors_have_the_parts_that_the_page_explains(serving, run):
    tenant, _ = serving(requests_per_minute=2)
    printed = run(tenant, "read-an-error.md")
    (shown,) = re.findall(r"```json\n(.*?)\n```", (PAGES / "read-an-error.md").read_text())
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert json.loads(shown) == answers[0]
    assert "\nrate_limit_exceeded\n" in printed
    assert all(re.search(rf"^{name}: .+", printed, re.MULTILINE) for name in ("retry-after-ms", "x-request-id"))
    assert {"type", "title", "status", "detail", "code", "request_id", "param"} == answers[-1].keys()
