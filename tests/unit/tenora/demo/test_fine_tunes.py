"""The demo's fine-tunes run at the same time, and end together."""

import itertools
import threading

import pytest

from tenora.demo import fine_tunes
from tenora.demo.fine_tunes import FineTunes
from tenora.training.example_tasks import OUTDOOR_VOICE, TICKET_ROUTER
from tenora.training.finetune import FinetuneReport

TASKS = (TICKET_ROUTER, OUTDOOR_VOICE)


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts the fine-tunes with a function in place of the child processes."""

    def starting_with(function) -> FineTunes:
        monkeypatch.setattr(fine_tunes, "finetune", lambda _base, _data, out, **call: function(out, **call))
        return FineTunes(TASKS, tmp_path / "base", tmp_path / "out")

    return starting_with


def report(task) -> FinetuneReport:
    return FinetuneReport(
        task=task.name, seed=7, examples=1, steps=1, tokens=1, final_loss=0.0, threads=1, wall_s=1.0, cpu_s=1.0,
        adapter_bytes=1,
    )  # fmt: skip


class EndlessTraining:
    """Takes steps until its caller raises."""

    def __init__(self) -> None:
        self.ended = []

    def __call__(self, _out, *, task, progress):
        try:
            for step in itertools.count():
                progress(step, 1_000_000, 0.0)
        finally:
            self.ended.append(task)


def test_the_fine_tunes_run_at_the_same_time_and_each_is_given_when_it_ends(start):
    both, voice_uploaded, outs = threading.Barrier(2, timeout=30), threading.Event(), {}

    def train(out, *, task, progress):
        both.wait()
        outs[task] = out
        if task is TICKET_ROUTER:
            assert voice_uploaded.wait(30)
        return report(task)

    with start(train) as running:
        finished = running.finished()
        assert next(finished) == (OUTDOOR_VOICE, outs[OUTDOOR_VOICE])
        voice_uploaded.set()
        assert list(finished) == [(TICKET_ROUTER, outs[TICKET_ROUTER])]


def test_a_failed_fine_tune_ends_the_other_one_at_its_next_step(start):
    endless = EndlessTraining()

    def train(out, *, task, progress):
        if task is TICKET_ROUTER:
            raise RuntimeError("train.jsonl:1: not JSON")
        endless(out, task=task, progress=progress)

    with pytest.raises(RuntimeError, match="not JSON"), start(train) as running:
        list(running.finished())
    assert endless.ended == [OUTDOOR_VOICE]


def test_an_interruption_ends_both_fine_tunes(start):
    endless = EndlessTraining()
    with pytest.raises(KeyboardInterrupt), start(endless):
        raise KeyboardInterrupt
    assert set(endless.ended) == set(TASKS)
