"""Requests whose gateway died: charged once by their last checkpoint, shown as estimates, and their lost tail named."""

from datetime import timedelta

import msgspec

from billing import service
from core import keys
from core.contracts import CHECKPOINT_TOKENS_MAX, EngineCounters
from core.db import unit_of_work


def estimate(stage, tenant, **changes):
    return stage.event(tenant, outcome="gateway_gone", estimated=True, **changes)


def test_an_estimate_is_charged_and_shown_as_one(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant), estimate(stage, tenant))
    with unit_of_work(stage.engine) as session:
        (bucket,) = service.usage(
            session, tenant_id=tenant, start=stage.now() - timedelta(hours=1), end=stage.now(), bucket="1d"
        )
    assert (bucket.requests, bucket.estimated_requests, bucket.input_tokens) == (2, 1, 200)


def test_an_estimate_never_contradicts_what_is_recorded(stage):
    tenant = stage.tenant()
    exact = stage.event(tenant, output_tokens=50)
    late = estimate(stage, tenant, request_id=exact.request_id, output_tokens=10)
    stage.bill(exact)
    stage.bill(late)
    assert (stage.pending, stage.dead_letters()) == (0, [])
    assert stage.value("SELECT output_tokens FROM usage_records") == 50


def test_what_an_engine_produced_after_the_last_checkpoint_is_drift_with_a_name(stage):
    tenant = stage.tenant()
    stage.bill(stage.event(tenant), estimate(stage, tenant))

    def engines_counted(tokens: int):
        counters = EngineCounters(
            prompt_tokens=200, generation_tokens=tokens, probe_prompt_tokens=0, probe_generation_tokens=0
        )
        stage.redis.hset(keys.ENGINE_COUNTERS, "rep_1/boot_1", msgspec.json.encode(counters))
        found = stage.reconcile()
        assert (found.estimated_requests, found.estimated_tail_tokens_max) == (1, CHECKPOINT_TOKENS_MAX)
        return found.drift_tokens, found.unexplained_drift_tokens

    assert engines_counted(40) == (0, 0)
    assert engines_counted(40 + CHECKPOINT_TOKENS_MAX) == (CHECKPOINT_TOKENS_MAX, 0)
    assert engines_counted(41 + CHECKPOINT_TOKENS_MAX) == (CHECKPOINT_TOKENS_MAX + 1, 1)
    assert engines_counted(39) == (-1, -1)  # a token charged that no engine produced is never explained
