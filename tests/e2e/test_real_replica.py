"""A whole replica, agent and real vLLM: canaries judge real weights, revoked adapters leave real tensors, and where
adapters lie is published as the engine has it.
"""

import time

import msgspec
import pytest

from adapters.validation.bounds import PlatformBounds, WeightBounds
from core import redis_keys
from core.contracts.costs import CostWindow
from core.contracts.engine_usage import EngineUsageHour
from core.ids import new_id
from data_plane.engine.settings import ReplicaSettings
from tenora.doctor.collect import engine_truth
from tenora.doctor.compare import Look, ReplicaLook, findings
from tests.conftest import wait_until
from tests.e2e.conftest import MEMORY
from tests.fixtures import processes
from tests.fixtures.engine.real_engine import BASE

pytestmark = [pytest.mark.e2e, pytest.mark.soak]
ANY_FINITE = PlatformBounds(weights=WeightBounds(magnitude=3e38, update_norm=float("inf")))


def usage_of_tenants(room, engine) -> dict[tuple[str, int], EngineUsageHour]:
    """What each tenant's requests have used until now, but for one more request whose report comes after theirs."""
    last = {"model": BASE, "prompt": "The end", "max_tokens": 1}
    headers = {"x-tenora-tenant": "tn_last", "x-request-id": new_id("req")}
    counted = requests_of_last(room)
    engine.client.post("/v1/completions", json=last, headers=headers).raise_for_status()
    wait_until(lambda: requests_of_last(room) > counted, what="the report of the last request")
    return {owner: hour for owner, hour in newest_counts(room).items() if owner[0] != "tn_last"}


def requests_of_last(room) -> int:
    return sum(hour.requests for (tenant_id, _), hour in newest_counts(room).items() if tenant_id == "tn_last")


def newest_counts(room) -> dict[tuple[str, int], EngineUsageHour]:
    return {(hour.tenant_id, hour.hour_ms): hour for report in room.usage_reports() for hour in report.hours}


def base_says(engine, prompt: str) -> str:
    """The base model's answer to a chat of one message. Its cache salt is separate, as a canary's is, so nothing is
    cached.
    """
    body = {
        "model": BASE, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
        "max_tokens": ReplicaSettings.model_fields["canary_answer_tokens"].default, "cache_salt": new_id("req"),
    }  # fmt: skip
    answer = engine.client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["message"]["content"]


def test_a_canary_distinguishes_weights_with_an_effect_from_weights_without(room, engine):
    wait_until(room.is_settled, what="the counters to follow the engine's")
    before, began = usage_of_tenants(room, engine), time.monotonic()
    passed = room.canary(engine.new_adapter(201, scale=0.06), timeout_s=60)
    print(f"\ncanary in {time.monotonic() - began:.1f} s, of it {passed.load_ms} ms from the store to the first token")
    print(f"base: {passed.base_answer!r}\nadapter: {passed.adapter_answer!r} ({passed.logprob_difference:.2f} nats)")
    assert (passed.code, passed.message) == (None, "")
    assert passed.logprob_difference > 0.5
    assert passed.load_ms > 0
    idle = room.canary(engine.new_adapter(202, scale=0.0), timeout_s=60)
    assert idle.code == "canary_no_effect"
    assert idle.logprob_difference == 0  # on an idle engine B = 0 is exactly nothing, however a CPU rounds
    assert idle.adapter_answer == idle.base_answer
    missing = room.canary(f"{new_id('ad')}@{'0' * 64}", timeout_s=60)
    assert missing.code == "canary_failed_to_load"
    wait_until(room.is_settled, what="the heartbeat to follow the engine's counters")
    assert usage_of_tenants(room, engine) == before, "canaries belong to no tenant"
    # Which words the base model answers differs by the CPU: "Paris" and the start of a French sentence are 0.1 nats
    # apart. But one engine computes the same for the same request when no other runs, to the last bit.
    assert passed.base_answer == idle.base_answer
    assert passed.base_answer
    assert base_says(engine, passed.prompt).startswith(passed.base_answer)


def test_a_canary_refuses_finite_weights_whose_logits_are_not_finite(room, engine):
    """The validation's bounds on weights would refuse them first; the canary is what stands behind those."""
    result = room.canary(engine.new_adapter(203, scale=1e20, bounds=ANY_FINITE), timeout_s=60)
    print(f"\n{result.message}")
    assert result.code == "canary_not_finite"
    assert room.canary(engine.new_adapter(204, scale=0.06), timeout_s=60).code is None, "it harmed no later canary"


def test_what_is_published_is_what_the_engine_has(room, engine):
    names = [engine.new_adapter(210 + number, scale=0.06) for number in range(6)]
    for name in names:
        engine.text(name)

    def differences() -> list:
        status, residency = room.status(), room.residency()
        replica = ReplicaLook(status=status, residency=residency, truth=engine_truth(status, processes.ENGINE_KEY))
        return findings(
            Look(replicas=(replica,), gateways=(), position=None, published={}, stored={}, revocations=(), routes={},
                 aliases={})
        )  # fmt: skip

    def of_replica() -> list:
        return [found for found in differences() if found.where.startswith("replica")]

    wait_until(lambda: of_replica() == [], what="residency and truth to agree")
    assert set(names) <= set(room.residency().slots)
    assert len(room.residency().memory) <= MEMORY


def test_the_windows_count_what_the_engine_counted(room, engine):
    """Steps on a CPU are not overlapped, so that the counts are exact."""
    wait_until(room.is_settled, what="the counters to follow the engine's")

    def totals() -> dict[str, int]:
        found = [
            msgspec.json.decode(fields[b"window"], type=CostWindow)
            for _, fields in room.client.xrange(redis_keys.COST_WINDOWS)
        ]
        return {
            name: sum(getattr(window, name) for window in found)
            for name in ("busy_ms", "steps", "prefill_tokens", "decode_tokens", "context_tokens", "adapter_steps")
        }

    def settled() -> dict[str, int]:
        before = room.counted_tokens()
        time.sleep(11)  # a whole window
        assert room.counted_tokens() == before, "nothing else uses the engine"
        return totals()

    before, counted = settled(), room.counted_tokens()
    name, numbers = engine.new_adapter(220, scale=0.06), [7 * each % 900 + 100 for each in range(60)]
    engine.complete(name, numbers, max_tokens=9, ignore_eos=True).raise_for_status()
    wait_until(
        lambda: room.is_settled() and room.counted_tokens() != counted, what="the heartbeat to follow the engine"
    )
    after = settled()
    grown = {name: after[name] - before[name] for name in after}
    assert (grown["prefill_tokens"], grown["decode_tokens"]) == (60, 8)
    assert (grown["steps"], grown["adapter_steps"]) == (9, 9)
    assert grown["context_tokens"] == sum(range(60, 68))
    assert grown["busy_ms"] > 0
