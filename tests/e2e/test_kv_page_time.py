"""KV page-time as a real engine measures it, against the pages and times that a client sees from outside."""

import asyncio
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from core.ids import new_id
from core.kv_pages import pages_for
from tests.conftest import wait_until
from tests.fixtures.engine.real_engine import BASE

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

NEVER_ENDS = {"0": -100, "2": -100}
PROMPT_TOKENS, OUTPUT_TOKENS = 100, 300


class Stream:
    """One streamed completion: the client's clock and the engine's count at each event, and the engine's reports. It is
    aborted after ``aborted_after`` events.
    """

    def __init__(self, *, aborted_after=0, **fields):
        self.fields, self.aborted_after = fields, aborted_after
        self.began = self.ended = 0.0
        self.tokens: list[tuple[float, int]] = []  # (time, completion tokens so far)
        self.reports: list[int] = []

    async def run(self, engine):
        self.began, request_id = time.monotonic(), new_id("req")
        body = {
            "model": BASE, "prompt": list(range(1000, 1000 + PROMPT_TOKENS)), "max_tokens": OUTPUT_TOKENS,
            "temperature": 0, "logit_bias": NEVER_ENDS, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }  # fmt: skip
        headers = {**engine.client.headers, "x-request-id": request_id}
        async with (
            httpx.AsyncClient(base_url=engine.url, headers=headers, timeout=120) as client,
            client.stream("POST", "/v1/completions", json=body | self.fields) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith(": tenora-kv-page-ms "):
                    self.reports.append(int(line.split()[-1]))
                elif line.startswith("data: {") and (event := json.loads(line[6:]))["choices"]:
                    self.tokens.append((time.monotonic(), event["usage"]["completion_tokens"]))
                    if len(self.tokens) == self.aborted_after:
                        ids = [f"cmpl-{request_id}-0"]
                        await client.post("/inference/v1/abort_requests", json={"request_ids": ids})
            self.ended = time.monotonic()
        return self

    def seen_page_ms(self, block_tokens: int) -> float:
        """The area under the tokens that the client saw, from the first one on."""
        steps = itertools.pairwise([*self.tokens, (self.ended, 0)])
        return sum(
            pages_for(PROMPT_TOKENS + count, block_tokens) * (later - at) * 1000 for (at, count), (later, _) in steps
        )

    @property
    def prefill_ms(self) -> float:
        return (self.tokens[0][0] - self.began) * 1000


def run_all(engine, *streams: Stream) -> tuple[Stream, ...]:
    async def together():
        await asyncio.gather(*(stream.run(engine) for stream in streams))

    asyncio.run(together())
    return streams


def test_a_request_costs_the_area_under_its_growth(engine, room):
    block = room.status().block_tokens
    (stream,) = run_all(engine, Stream())
    measured, seen = stream.reports[-1], stream.seen_page_ms(block)
    most = pages_for(PROMPT_TOKENS + OUTPUT_TOKENS, block) * (stream.ended - stream.began) * 1000
    prefill = pages_for(PROMPT_TOKENS, block) * stream.prefill_ms
    print(f"\nmeasured {measured}, seen {seen:.0f} + at most {prefill:.0f} before the first token, largest {most:.0f}")
    assert 0.95 * seen <= measured <= 1.05 * seen + prefill
    assert measured < 0.75 * most
    assert stream.reports == sorted(stream.reports)
    assert len(stream.reports) >= (stream.ended - stream.tokens[0][0]) // 2, "it says how far it has got"


def test_a_whole_answer_says_how_far_it_has_got(engine):
    request_id = new_id("req")
    ids = [f"cmpl-{request_id}-0"]
    body = {"model": BASE, "prompt": "The sea", "max_tokens": 200, "logit_bias": NEVER_ENDS}
    headers = {"x-request-id": request_id, "x-tenora-tenant": new_id("tn")}  # without a tenant, nothing is counted

    def so_far() -> int | None:
        found = engine.client.post("/tenora/v1/progress", json={"request_ids": ids}).raise_for_status().json()
        return found["requests"].get(ids[0], {}).get("kv_page_ms")

    def answer() -> httpx.Response:
        return engine.client.post("/v1/completions", json=body, headers=headers)

    with ThreadPoolExecutor(1) as elsewhere:
        answered = elsewhere.submit(answer)
        first = wait_until(so_far, what="the first token")
        later = wait_until(lambda: (now := so_far()) and now > first and now, what="more of it")
        final = int(answered.result().headers["x-tenora-kv-page-ms"])
    assert 0 < first < later <= final
