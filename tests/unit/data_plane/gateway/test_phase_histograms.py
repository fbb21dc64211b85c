"""A request's phases are counted by class, pool, placement group and tier, and the number of series has a bound."""

import pytest
from prometheus_client import REGISTRY

from core.contracts.usage import UsageEvent
from data_plane.gateway import metrics
from data_plane.gateway.metrics import PhaseHistograms

TIMES_MS = (5, None, 40, 50, 20, 100, 150)


def value(part: str, phase: str, *labels: str) -> float | None:
    names = ("phase", "service_class", "pool", "base_model", "rank_class", "adapter_tier")
    of = dict(zip(names, (phase, *labels), strict=True))
    return REGISTRY.get_sample_value(f"tenora_gateway_phase_seconds_{part}", of)


def event(base_model: str, rank_class: int | None = None, adapter_tier: str | None = None, **more: str) -> UsageEvent:
    return UsageEvent(
        request_id="req_1", tenant_id="tn_1", key_id="key_1", base_model=base_model, adapter_id=None, revision_id=None,
        replica_id="rep_1", outcome="done", started_at_ms=0, settled_at_ms=0, input_tokens=1, cached_tokens=0,
        output_tokens=1, kv_page_ms=0, rank_class=rank_class, adapter_tier=adapter_tier, **more,
    )  # fmt: skip


def test_each_phase_that_was_measured_is_observed():
    PhaseHistograms().observe("chat", event("llama", 16, "store", service_class="batch"), TIMES_MS)
    of = ("batch", "chat", "llama", "16", "store")
    assert value("count", "wait", *of) == 1
    assert value("sum", "prefill", *of) == pytest.approx(0.04)
    assert value("sum", "whole", *of) == pytest.approx(0.15)
    assert value("count", "load", *of) == 0, "it was not measured"


def test_a_base_model_without_a_pool_has_empty_labels():
    PhaseHistograms().observe("", event("mistral"), TIMES_MS)
    assert value("count", "ttft", "interactive", "", "mistral", "", "") == 1


def test_beyond_the_bound_labels_are_empty(monkeypatch):
    monkeypatch.setattr(metrics, "_SERIES_MAX", 1)
    histograms = PhaseHistograms()
    for pool in ("first", "second", "third", "first"):
        histograms.observe(pool, event("qwen", 16, "slot"), TIMES_MS)
    assert value("count", "whole", "interactive", "first", "qwen", "16", "slot") == 2
    assert value("count", "whole", "interactive", "second", "qwen", "16", "slot") is None
    assert value("count", "whole", "", "", "", "", "") == 2
