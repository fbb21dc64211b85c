"""Batches with every part: OpenAI's SDK calls a gateway, which relays to the control plane; the batch process sends the
lines through the gateway to a replica that notes every token. ``tests/chaos/batches.py`` kills all three.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import openai
import pytest
import sqlalchemy as sa
from redis import Redis

from core import redis_keys
from core.contracts.usage import UsageEvent
from tests.conftest import TLS, wait_until
from tests.fixtures import fork_server, processes
from tests.fixtures.control_plane.api import Tenant
from tests.fixtures.control_plane.two_gateways import AMPLE
from tests.fixtures.control_plane.worker import running_worker
from tests.fixtures.gateway.tiny_tokenizer import CHATML, tiny_route, tokenizer_json
from tests.fixtures.uploads.peft_adapters import tiny_base
from tests.integration.control_plane.batches.conftest import CHAT, jsonl, line, read

LINES = 40
KILLS, LINES_OF_KILLS = 4, 80


@dataclass
class Platform:
    tenant: Tenant
    sdk: openai.OpenAI
    witness: processes.WitnessProcess
    redis: Redis
    batch_process: Callable[[], contextlib.AbstractContextManager[fork_server.ForkedProcess]]

    def begin(self, *lines: dict) -> openai.types.Batch:
        file = self.sdk.files.create(file=("input.jsonl", jsonl(*lines)), purpose="batch")
        return self.sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

    def ended(self, batch_id: str) -> openai.types.Batch:
        def look() -> openai.types.Batch | None:
            found = self.sdk.batches.retrieve(batch_id)
            return found if found.status in ("completed", "failed", "expired", "cancelled") else None

        return wait_until(look, timeout_s=120, what="the batch to end")

    def events(self) -> list[UsageEvent]:
        entries = self.redis.xrange(redis_keys.USAGE_STREAM)
        return [msgspec.json.decode(fields[b"event"], type=UsageEvent) for _, fields in entries]


@pytest.fixture
def platform(api, settings, redis, redis_settings, tmp_path) -> Iterator[Platform]:
    route = tiny_route()
    api.register(msgspec.structs.replace(
        tiny_base(id=route.id, hub_name=route.hub_name), tokenizer_json=tokenizer_json().decode(),
        chat_template=CHATML, bos_token=route.bos_token, eos_token=route.eos_token, vocab_size=route.vocab_size,
    )).raise_for_status()  # fmt: skip
    tenant, redis_url = api.tenant(**AMPLE), redis_settings.redis_url
    redis.set(redis_keys.QUOTAS_REBUILT, 1)  # no billing worker runs here
    with contextlib.ExitStack() as up:
        up.enter_context(running_worker(settings))
        witness = up.enter_context(processes.witness(tmp_path, redis_url))
        witness.faults(token_interval_s=0.01, output_tokens=8)
        gateway = up.enter_context(processes.gateway(tmp_path, redis_url, control_url=api.url))
        more = {"TENORA_GATEWAY_URL": gateway.url, "TENORA_BATCH_CONCURRENCY_MAX": "8"}
        batch_process = partial(running_worker, settings, ("control_plane", "batch"), **more)
        http = openai.DefaultHttpxClient(verify=TLS)
        sdk = openai.OpenAI(
            base_url=f"{gateway.url}/v1", api_key=tenant.key, max_retries=2, http_client=http
        )  # fmt: skip
        up.callback(sdk.close)

        def knows() -> bool:
            with contextlib.suppress(openai.APIError):
                return bool(sdk.models.list().data)
            return False

        wait_until(knows, timeout_s=30, what="the gateway to know the tenant")

        yield Platform(tenant, sdk, witness, redis, batch_process)


def test_a_batch_through_a_gateway_costs_what_its_lines_cost(platform):
    model = tiny_route().id
    batch = platform.begin(*[line(f"c{n}", model=model, max_tokens=8) for n in range(LINES)])
    with platform.batch_process():
        done = platform.ended(batch.id)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", LINES, 0)
    output = read(platform.sdk, done.output_file_id)
    assert len(output) == LINES
    assert {each["response"]["body"]["model"] for each in output.values()} == {model}
    events = platform.events()
    assert {event.request_id for event in events} == {each["response"]["request_id"] for each in output.values()}
    assert {(event.tenant_id, event.key_id) for event in events} == {(platform.tenant.id, platform.tenant.key_id)}
    assert {event.service_class for event in events} == {"batch"}
    assert done.usage.output_tokens == sum(event.output_tokens for event in events)
    assert done.usage.input_tokens == sum(event.input_tokens for event in events)
    assert done.cost_nanos > 0


def test_a_killed_batch_process_loses_no_line_and_bills_none_twice(platform):
    platform.witness.faults(token_interval_s=0.05, output_tokens=8)
    model = tiny_route().id
    batch = platform.begin(*[line(f"c{n}", model=model, max_tokens=8) for n in range(LINES_OF_KILLS)])
    for number in range(KILLS):
        with platform.batch_process() as process:
            ready = len(platform.events()) + 3
            wait_until(lambda ready=ready: len(platform.events()) >= ready, timeout_s=30, what="some lines")
            time.sleep(0.03 * number)
            process.kill()
            process.wait()
    with platform.batch_process():
        done = platform.ended(batch.id)
    assert read(platform.sdk, done.error_file_id) == {}
    assert (done.request_counts.completed, done.request_counts.failed) == (LINES_OF_KILLS, 0)
    assert len(read(platform.sdk, done.output_file_id)) == LINES_OF_KILLS
    events = platform.events()
    assert Counter(event.outcome for event in events) == {"done": LINES_OF_KILLS}
    assert len({event.request_id for event in events}) == LINES_OF_KILLS
    assert len(platform.witness.received()) == LINES_OF_KILLS


def test_a_suspended_tenants_batch_fails_with_the_reason(api, engine, platform):
    platform.witness.faults(token_interval_s=0.05, output_tokens=8)
    batch = platform.begin(*[line(f"c{n}", model=tiny_route().id, max_tokens=8) for n in range(LINES)])
    path = f"/api/v1/admin/tenants/{platform.tenant.id}"
    with platform.batch_process():
        wait_until(platform.events, timeout_s=30, what="the first line")
        api.admin.patch(path, json={"status": "suspended"}).raise_for_status()
        completed = sa.text("SELECT count(*) FROM batches WHERE status = 'completed'")
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            wait_until(lambda: connection.execute(completed).scalar_one(), timeout_s=60, what="the batch to end")
        api.admin.patch(path, json={"status": "active"}).raise_for_status()

        def served() -> openai.types.Batch | None:
            with contextlib.suppress(openai.PermissionDeniedError):
                return platform.sdk.batches.retrieve(batch.id)
            return None

        done = wait_until(served, what="the tenant to be served again")
    assert 0 < done.request_counts.completed < LINES
    assert done.request_counts.completed + done.request_counts.failed == LINES
    errors = read(platform.sdk, done.error_file_id)
    assert "tenant_suspended" in {each["error"]["code"] for each in errors.values()}
