"""KV page-time on the whole platform: what the ledger has is what the real engine measured, to the millisecond."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest

from core.kv_pages import pages_for
from tenora.demo.control import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BLOCK_TOKENS = 32  # of the platform's engine
OUTPUT_TOKENS = 300
NEVER_ENDS = {"0": -100, "2": -100}  # the tokens at which the base model stops


@dataclass(frozen=True)
class Tenant:
    """A tenant of its own, so that its usage is that of one test."""

    sdk: openai.OpenAI
    control: ControlPlane

    def billed_page_ms(self) -> int:
        start, end = time.gmtime(time.time() - 43_200), time.gmtime(time.time() + 60)
        day = {name: time.strftime("%Y-%m-%dT%H:%M:%SZ", at) for name, at in (("start", start), ("end", end))}
        rows = self.control.get("/api/v1/usage", bucket="1d", **day)["data"]
        return round(1000 * sum(row["kv_page_seconds"] for row in rows))


@pytest.fixture
def tenant(platform) -> Iterator[Tenant]:
    _, key = platform.new_tenant("page-time")
    now = platform.status()
    with openai.OpenAI(base_url=now["gateway_url"] + "/v1", api_key=key, max_retries=0, timeout=120) as sdk:
        control = ControlPlane(now["control_url"], key)
        yield Tenant(sdk, control)
        control.close()


def test_a_request_is_billed_the_area_under_its_growth(platform, tenant, model):
    """It lies near the area that the caller sees, and much below its largest pages times its stay."""
    began, arrivals, prompt_tokens = time.monotonic(), [], 0
    for chunk in tenant.sdk.completions.create(
        model=model, prompt="The sea is wide. " * 20, max_tokens=OUTPUT_TOKENS, temperature=0, logit_bias=NEVER_ENDS,
        stream=True, stream_options={"include_usage": True},
    ):  # fmt: skip
        if chunk.choices:
            arrivals.append(time.monotonic())
        prompt_tokens = chunk.usage.prompt_tokens if chunk.usage else 0
    ended = time.monotonic()
    assert 80 < prompt_tokens < 120
    last = len(arrivals) - 1
    lengths = [prompt_tokens + 1 + round((OUTPUT_TOKENS - 1) * number / last) for number in range(last + 1)]
    seen = sum(
        pages_for(length, BLOCK_TOKENS) * (later - at) * 1000
        for length, (at, later) in zip(lengths, itertools.pairwise([*arrivals, ended]), strict=True)
    )
    before_first = pages_for(prompt_tokens, BLOCK_TOKENS) * (arrivals[0] - began) * 1000
    most = pages_for(prompt_tokens + OUTPUT_TOKENS, BLOCK_TOKENS) * (ended - began) * 1000
    platform.reconcile_when_settled()
    billed = tenant.billed_page_ms()
    print(f"\nbilled {billed}, seen {seen:.0f}, at most {before_first:.0f} before, largest for the stay {most:.0f}")
    assert 0.9 * seen <= billed <= 1.05 * seen + before_first
    assert billed < 0.75 * most


def test_the_ledger_has_the_page_time_that_the_engine_counted(platform, tenant, model):
    """Also of parallel sequences, and of a caller that hangs up."""
    before = platform.reconcile_when_settled()
    tenant.sdk.completions.create(model=model, prompt="How do bees fly?", n=3, max_tokens=20)
    tenant.sdk.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], max_tokens=5)
    stream = tenant.sdk.completions.create(model=model, prompt="Once upon a time", max_tokens=900, stream=True)
    next(iter(stream))
    stream.close()
    after = platform.reconcile_when_settled()
    billed = tenant.billed_page_ms()
    assert after["engine_kv_page_ms"] - before["engine_kv_page_ms"] == billed > 0
