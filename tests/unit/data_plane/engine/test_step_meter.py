"""What one step of vLLM's scheduler counts as, and what becomes of the counters."""

from types import SimpleNamespace

import pytest

from data_plane.engine.step_meter import StepMeter, work_of
from data_plane.engine.steps import STEPS_FILE, EngineSteps, read_steps


def scheduled(new: dict[str, int] | None = None, running: dict[str, tuple[int, int, int]] | None = None):
    """``new``: scheduled tokens by id; ``running``: (scheduled, computed before, generated) by id."""
    running = running or {}
    known = SimpleNamespace(
        req_ids=list(running),
        num_computed_tokens=[computed for _, computed, _ in running.values()],
        num_output_tokens=[generated for _, _, generated in running.values()],
    )
    tokens = (new or {}) | {each: count for each, (count, _, _) in running.items()}
    return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_cached_reqs=known)


def requests(**adapters: int | None):
    return {
        each: SimpleNamespace(lora_request=None if number is None else SimpleNamespace(lora_int_id=number))
        for each, number in adapters.items()
    }


@pytest.mark.parametrize(
    ("step", "work"),
    [
        (scheduled(new={"a": 120}), (1, 120, 0, 0, 1, 0)),
        (scheduled(running={"a": (1, 130, 5)}), (1, 0, 1, 130, 1, 0)),
        (scheduled(new={"b": 30}, running={"a": (1, 130, 5), "c": (1, 70, 1)}), (1, 30, 2, 200, 3, 0)),
        (scheduled(running={"a": (512, 512, 0)}), (1, 512, 0, 0, 1, 0)),  # a later chunk of a long prompt
        (scheduled(running={"a": (1, 512, 0)}), (1, 1, 0, 0, 1, 0)),  # its last chunk of one token
        (scheduled(running={"a": (140, 0, 5)}), (1, 140, 0, 0, 1, 0)),  # computed again after a preemption
    ],
)
def test_a_step_counts_prefill_decoding_and_the_context_that_decoding_reads(step, work):
    assert work_of(step, {}) == work


def test_an_adapter_counts_once_however_many_sequences_use_it():
    step = scheduled(new={"a": 10, "b": 10, "c": 10, "gone": 10}, running={"d": (1, 10, 1)})
    assert work_of(step, requests(a=1, b=1, c=None, d=2))[-1] == 2


def test_the_meter_writes_what_it_counted(tmp_path):
    meter = StepMeter(tmp_path)
    assert read_steps(tmp_path) is None
    meter.record_step(scheduled(new={"a": 120}), requests(a=7))
    meter.record_step(scheduled(running={"a": (1, 120, 1)}), requests(a=7))
    meter.record_step(scheduled(), {})  # a step without tokens is none
    meter.write()
    found = read_steps(tmp_path)
    assert found == EngineSteps(
        started_at_ms=found.started_at_ms, steps=2, prefill_tokens=120, decode_tokens=1, context_tokens=120,
        sequence_steps=2, adapter_steps=2,
    )  # fmt: skip


def test_steps_that_the_meter_does_not_understand_do_not_reach_the_engine(tmp_path):
    meter = StepMeter(tmp_path)
    meter.record_step(SimpleNamespace(num_scheduled_tokens={"a": 1}), {})
    meter.record_step(scheduled(new={"a": 120}), {})
    assert meter.totals().steps == 0


def test_half_written_counters_are_none(tmp_path):
    (tmp_path / STEPS_FILE).write_text('{"steps": ')
    assert read_steps(tmp_path) is None
