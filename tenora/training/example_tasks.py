"""The two example tasks: the prompt of each, its correct answers, and the reader of its dataset.

Training and inference share these prompts, because a fine-tune only works for prompts like those in its training data.
No model runs here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypedDict

Split = Literal["train", "heldout"]

QUEUES: Final = ("cards", "fraud", "login", "transfers", "loans", "mortgages", "fees", "accounts")
SIGN_OFF: Final = "See you above the treeline!"


class Message(TypedDict):
    """One chat message, as the OpenAI API takes it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Example:
    """One line of a dataset."""

    prompt: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """The purpose of an adapter.

    ``is_right(answer, expected)`` judges a generated answer against the dataset's; ``answer_tokens_max`` is enough for
    any answer of the trained kind.
    """

    name: str
    system: str
    prompt_field: str
    answer_field: str
    answer_tokens_max: int
    is_right: Callable[[str, str], bool]

    def messages(self, prompt: str) -> list[Message]:
        """The chat that asks for this prompt's answer; the model's template adds where the answer begins."""
        return [Message(role="system", content=self.system), Message(role="user", content=prompt)]

    def load(self, dataset: Path, split: Split) -> list[Example]:
        """The examples of ``dataset/<split>.jsonl`` in their order.

        Raises ValueError naming file, line and field when a line is not an object with both texts, or none is there.
        """
        path = dataset / f"{split}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines:
            raise ValueError(f"{path}: empty; write one JSON object a line")
        return [self._parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]

    def _parse(self, line: str, where: str) -> Example:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error.msg}); write one object a line") from error
        texts = []
        for field in (self.prompt_field, self.answer_field):
            text = row.get(field) if isinstance(row, dict) else None
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f'{where}: needs a text in "{field}"')
            texts.append(text)
        return Example(prompt=texts[0], answer=texts[1])


def _same_label(answer: str, expected: str) -> bool:
    return answer.strip() == expected


def _signs_off(answer: str, _expected: str) -> bool:
    return answer.rstrip().endswith(SIGN_OFF)


TICKET_ROUTER: Final = Task(
    name="ticket_router",
    system="Answer with the queue of this bank ticket: " + ", ".join(QUEUES[:-1]) + " or " + QUEUES[-1] + ".",
    prompt_field="text",
    answer_field="label",
    answer_tokens_max=8,
    is_right=_same_label,
)
OUTDOOR_VOICE: Final = Task(
    name="outdoor_voice",
    system="You answer customers of an outdoor shop.",
    prompt_field="question",
    answer_field="answer",
    answer_tokens_max=80,
    is_right=_signs_off,
)
TASKS: Final = {task.name: task for task in (TICKET_ROUTER, OUTDOOR_VOICE)}
