"""The demo's fine-tunes run at the same time, and end together."""

import itertools

import pytest

from tenora.demo import tenants
from tenora.training.example_tasks import OUTDOOR_VOICE, TICKET_ROUTER


def tenant(task) -> tenants.Tenant:
    return tenants.Tenant(id="tn_1", name="Acme", key="", adapter=task.name, task=task, control=None)


@pytest.mark.parametrize("failure", [RuntimeError("train.jsonl:1: not JSON"), KeyboardInterrupt()], ids=repr)
def test_a_failed_fine_tune_ends_the_other_one_at_its_next_step(monkeypatch, tmp_path, failure):
    ended = []

    def finetune(_base, _dataset, _out, *, task, progress):
        """In place of a child process: the router's fails, the other one's takes steps until its caller raises."""
        if task is TICKET_ROUTER:
            raise failure
        try:
            for step in itertools.count():
                progress(step, 1_000_000, 0.0)
        finally:
            ended.append(task)

    monkeypatch.setattr(tenants, "finetune", finetune)
    with pytest.raises(type(failure)):
        tenants.fine_tune((tenant(TICKET_ROUTER), tenant(OUTDOOR_VOICE)), tmp_path, tmp_path)
    assert ended == [OUTDOOR_VOICE]
