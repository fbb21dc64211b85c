"""A pool without replicas serves its first requests: a real gateway, control plane and agent, and a witness as engine.
The test is the placer: it starts what is wanted.
"""

import contextlib
import threading
import time

import msgspec
import openai
import pytest
import redis as redis_client
from click.testing import CliRunner

from adapters.base_weights import read_weights
from control_plane import database_roles
from control_plane.pools.settings import FleetSettings
from control_plane.pools.wanted import FleetDecisions
from core import db, redis_acl, redis_keys
from core.contracts.fleet import WantedPool
from core.settings import RedisSettings
from tenora.cli import main
from tenora.stack.program import answers
from tests.conftest import TLS, wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.least_privilege import as_role, as_user
from tests.fixtures.uploads.peft_adapters import tiny_base

START_S = 1.0
FIRST_TOKEN_S_MAX = 2.0
REQUESTS = 20
POOLS = "/api/v1/admin/pools"


@pytest.fixture
def redis(redis_server):
    with redis_client.Redis.from_url(redis_server) as client:
        client.flushall()
        yield client


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def pool(api, checkpoint):
    """A pool of none or one replica, whose base model is the witness's."""
    api.register(msgspec.structs.replace(tiny_base(), id="tiny-chat")).raise_for_status()
    body = {"name": "chat", "base_model": "tiny-chat", "replicas_min": 0, "replicas_max": 1}
    api.admin.post(POOLS, json=body).raise_for_status()
    weights = read_weights(checkpoint).digest
    api.admin.post(f"{POOLS}/chat/revisions", json={"weights": weights, "engine": "unnamed"}).raise_for_status()
    api.admin.put(f"{POOLS}/chat/revision", json={"revision": 1}).raise_for_status()


@pytest.fixture
def decide(module_postgres_settings, redis_server):
    """A round of the fleet process, with its privileges."""
    url = as_user(RedisSettings(redis_url=redis_server), redis_acl.WORKER).redis_url
    engine = db.connect(as_role(module_postgres_settings, database_roles.WORKER))
    with redis_client.Redis.from_url(url) as client:
        settings = FleetSettings(fleet_shrink_after_s=0, fleet_idle_s=0.5)
        decisions = FleetDecisions(engine, client, settings, settle_s=0)
        yield decisions.run_once
    engine.dispose()


def entry(redis) -> WantedPool:
    return msgspec.json.decode(redis.hget(redis_keys.FLEET_WANTED, "chat"), type=WantedPool)


def settings_of_a_copy(redis) -> dict[str, str]:
    """What a placer sets for a replica of the pool."""
    variables = entry(redis).revisions[0].environment
    return {name.removeprefix("TENORA_").lower(): value for name, value in variables.items()}


def wanted(redis) -> int:
    return sum(each.replicas for each in entry(redis).revisions)


class Asked(threading.Thread):
    """A streamed request, and when its first token came."""

    def __init__(self, sdk: openai.OpenAI) -> None:
        super().__init__()
        self.sdk, self.first_at, self.words = sdk, 0.0, 0
        self.start()

    def run(self) -> None:
        messages = [{"role": "user", "content": "hi"}]
        for chunk in self.sdk.chat.completions.create(model="tiny-chat", messages=messages, max_tokens=8, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                self.first_at = self.first_at or time.monotonic()
                self.words += 1


def test_the_first_requests_of_an_empty_pool_start_a_replica_and_none_is_lost(
    api, redis, redis_server, tmp_path, checkpoint, pool, decide
):
    def decided(count: int) -> bool:
        decide()
        return wanted(redis) == count

    publisher = Publisher(redis, processes.PEPPER)
    publisher.base_model()
    key = publisher.key(publisher.tenant())
    with contextlib.ExitStack() as up:
        gateway = up.enter_context(processes.gateway(tmp_path, redis_server, queue_wait_s=90))
        url, http = f"{gateway.url}/v1", openai.DefaultHttpxClient(verify=TLS)
        sdk = up.enter_context(openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=90, http_client=http))
        assert decided(0)
        asked = [Asked(sdk) for _ in range(REQUESTS)]
        wait_until(lambda: decided(1), what="a wanted replica")
        settings = settings_of_a_copy(redis) | {"model_path": checkpoint, "model_digest": None}
        agent = up.enter_context(processes.agent(tmp_path, redis_server, engine={"start-s": START_S}, **settings))
        wait_until(lambda: answers(f"{agent.engine.url}/health"), what="the engine's own start")
        started_at = time.monotonic()
        for each in asked:
            each.join()
        assert [each.words for each in asked] == [8] * REQUESTS, "none is lost"
        seconds = sorted(each.first_at - started_at for each in asked)
        print(f"first token {seconds[0]:.2f} s after the engine's start, the last request's {seconds[-1]:.2f} s")
        assert seconds[0] <= FIRST_TOKEN_S_MAX
        wait_until(lambda: decided(0), what="the end of an idle pool")
    access = ["--control-url", api.url, "--key", api.admin_secret]
    explained = CliRunner().invoke(main, ["fleet", *access, "explain", "chat"]).output
    assert "1 -> 0 replicas: less load  (allowed 0-1)\n    signals: ready 1, pages_per_replica" in explained, explained
    assert (
        "0 -> 1 replicas: requests  (allowed 0-1)\n    asked for: requests 1\n    signals: waiting_pages" in explained
    )
