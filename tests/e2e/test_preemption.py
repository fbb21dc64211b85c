"""KV pages are reserved before a request is sent, so an engine never takes pages from one request for another.

The replica is separate, because the shared replicas have a larger KV cache than a test can fill.
"""

import asyncio
import hashlib
import time
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core import redis_keys
from core.contracts.routes import BaseModelRoute
from core.kv_pages import pages_for
from data_plane.engine.kv_table import KvTableReader
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.real_engine import BASE
from tests.fixtures.engine.real_replica import RealReplica, real_replica

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

BLOCKS = 32  # of 32 tokens; vLLM keeps one for itself, so of requests that take four there is room for seven, not eight
OUTPUT_TOKENS = 110
NEVER_ENDS = {"0": -100, "2": -100}  # the tokens at which the base model stops: when it would, differs by the CPU
AT_ONCE = 20
PROMPTS = [f"{number}. Once upon a time, in a land far away," for number in range(AT_ONCE)]


@dataclass(frozen=True)
class Small:
    """A replica with little KV cache, and the only gateway before it."""

    replica: RealReplica
    gateway: processes.GatewayProcess

    def preemptions(self) -> int:
        page = httpx.get(f"{self.replica.engine.url}/metrics").text
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        (count,) = [sample.value for sample in samples if sample.name == "vllm:num_preemptions_total"]
        return int(count)


@pytest.fixture(scope="module")
def small(no_replica, checkpoint, s3_settings, tmp_path_factory):
    work = tmp_path_factory.mktemp("small")
    with ExitStack() as up:
        valkey = up.enter_context(processes.valkey(work))
        argv = ("--num-gpu-blocks-override", str(BLOCKS))
        replica = up.enter_context(
            real_replica(checkpoint, s3_settings, valkey.url, work, slots=1, memory=1, engine_argv=argv)
        )
        base = replica.engine.base
        route = BaseModelRoute(
            id=base.id, hub_name=base.hub_name, context_tokens=512, vocab_size=base.vocab_size,
            tokenizer_sha256=hashlib.sha256(base.tokenizer_json.encode()).hexdigest(),
            chat_template=base.chat_template, bos_token=base.bos_token, eos_token=base.eos_token, created_at_ms=1,
        )  # fmt: skip
        valkey.client.set(redis_keys.blob(route.tokenizer_sha256), base.tokenizer_json)
        replica.room.publisher.put("base_models", route.id, route)
        # Without headroom, so that every page is taken which the replica says it has.
        settings = {"queue_wait_s": 120, "placement_headroom_percent": 0}
        yield Small(replica, up.enter_context(processes.gateway(work, valkey.url, **settings)))


async def flood(url: str, *bearers: str) -> list[dict]:
    """Everything at once, in turn as each of those; every request is answered."""
    async with httpx.AsyncClient(base_url=url, timeout=180, limits=httpx.Limits(max_connections=AT_ONCE)) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    "/v1/completions",
                    json={
                        "model": BASE,
                        "prompt": prompt,
                        "max_tokens": OUTPUT_TOKENS,
                        "temperature": 0,
                        "logit_bias": NEVER_ENDS,
                    },
                    headers={"Authorization": f"Bearer {bearers[number % len(bearers)]}"},
                )
                for number, prompt in enumerate(PROMPTS)
            )
        )
    assert [answer.status_code for answer in answers] == [200] * AT_ONCE
    return [answer.json() for answer in answers]


def test_more_requests_than_the_kv_cache_holds_wait_and_none_is_preempted(small):
    publisher, status = small.replica.room.publisher, small.replica.room.status()
    bearers = [publisher.key(publisher.tenant()) for _ in range(2)]
    for bearer in bearers:
        wait_until(lambda bearer=bearer: knows(small.gateway.url, bearer), what="the gateway to know a key")
    answers = asyncio.run(flood(small.gateway.url, *bearers))
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {OUTPUT_TOKENS}
    held = sum(pages_for(answer["usage"]["total_tokens"], status.block_tokens) for answer in answers)
    assert held > 2 * status.pages_total, "these would have found room all at once"
    assert small.preemptions() == 0
    table = KvTableReader(small.replica.engine.settings.run_dir)
    before, began = table.total_page_ms(), time.monotonic()
    asyncio.run(flood(small.replica.engine.url, processes.ENGINE_KEY))
    took_ms = (time.monotonic() - began) * 1000
    assert small.preemptions() > 0, "the engine itself holds so many back: this flood shows nothing"
    held = table.total_page_ms() - before
    print(f"\nheld {held / took_ms:.1f} pages of {status.pages_total} in the mean")
    assert held <= status.pages_total * took_ms, "preempted requests were measured as if they held pages"
    assert held > status.pages_total * took_ms / 2


def knows(url: str, bearer: str) -> bool:
    return httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {bearer}"}).status_code == 200
