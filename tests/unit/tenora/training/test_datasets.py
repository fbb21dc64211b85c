"""The example datasets: the guarantees for readers of examples/."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tenora.training.example_tasks import OUTDOOR_VOICE, QUEUES, SIGN_OFF, TASKS, TICKET_ROUTER

EXAMPLES = Path(__file__).parents[4] / "examples"


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z']+", text.lower()))


@pytest.mark.parametrize("name", TASKS)
def test_every_line_parses_and_no_prompt_is_repeated(name):
    task = TASKS[name]
    prompts = [e.prompt for split in ("train", "heldout") for e in task.load(EXAMPLES / name, split)]
    assert [prompt for prompt, times in Counter(prompts).items() if times > 1] == []


@pytest.mark.parametrize("name", TASKS)
def test_no_held_out_prompt_is_a_reordering_of_a_trained_one(name):
    task = TASKS[name]
    trained = [words(e.prompt) for e in task.load(EXAMPLES / name, "train")]
    for example in task.load(EXAMPLES / name, "heldout"):
        asked = words(example.prompt)
        closest = max(len(asked & seen) / len(asked | seen) for seen in trained)
        assert closest < 0.8, example.prompt


def test_each_queue_has_twenty_tickets_to_learn_from_and_eight_held_out():
    for split, count in (("train", 20), ("heldout", 8)):
        labels = Counter(example.answer for example in TICKET_ROUTER.load(EXAMPLES / "ticket_router", split))
        assert labels == dict.fromkeys(QUEUES, count)


def test_each_reply_of_the_shop_signs_off_once():
    for split, count in (("train", 40), ("heldout", 8)):
        examples = OUTDOOR_VOICE.load(EXAMPLES / "outdoor_voice", split)
        assert len(examples) == count
        for example in examples:
            assert OUTDOOR_VOICE.is_right(example.answer, "")
            assert example.answer.count(SIGN_OFF) == 1
            assert SIGN_OFF not in example.prompt


def test_the_prompt_names_every_queue_and_does_not_give_the_sign_off_away():
    assert all(queue in TICKET_ROUTER.system for queue in QUEUES)
    assert SIGN_OFF not in OUTDOOR_VOICE.system
