"""The verdict of a canary run: a pure comparison of the answers of base model and adapter to the same prompts.

An adapter passes when all its numbers are finite and its log-probabilities differ from the base model's by more than
the engine's own noise. An adapter without effect (B = 0) differs by exactly 0 on an idle engine. Other requests in the
same batch change the order of bfloat16 sums and move log-probabilities by about 0.01, also between two runs of the base
model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DIFFERENCE_MIN: Final = 1e-3
"""In nats. Below this, two answers count as equal. Any trained fine-tune differs by far more than 0.1."""

NOISE_FACTOR: Final = 3.0
"""An adapter's difference must exceed the base model's difference between two runs by this factor."""

DIFFERENCE_CERTAIN: Final = 0.5
"""In nats. Noise never comes near it, so the base model does not have to run again to measure the noise."""

_NO_LOGPROB: Final = -9999.0  # vLLM's stand-in for minus infinity (vllm/entrypoints/openai/chat_completion, 0.32)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One generated token and the log-probabilities of the most likely tokens, including itself."""

    token: str
    logprobs: dict[str, float]


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """One model's answer to one prompt."""

    text: str
    steps: tuple[TokenLogprobs, ...]

    @property
    def is_finite(self) -> bool:
        """Whether every log-probability is finite and none stands for minus infinity."""
        return bool(self.steps) and all(
            math.isfinite(logprob) and logprob > _NO_LOGPROB
            for step in self.steps
            for logprob in step.logprobs.values()
        )


def difference(one: Sequence[CanaryAnswer], other: Sequence[CanaryAnswer]) -> float:
    """The largest difference of a token's log-probability, in nats, up to and including the first token in which the
    answers to a prompt differ. A token that only one side ranks counts by how far it is above the other side's lowest
    rank.
    """
    largest = 0.0
    for first, second in zip(one, other, strict=True):
        for here, there in zip(first.steps, second.steps, strict=False):
            largest = max(largest, _step_difference(here.logprobs, there.logprobs))
            if here.token != there.token:
                break
    return largest


def _step_difference(one: dict[str, float], other: dict[str, float]) -> float:
    shared = [abs(one[token] - other[token]) for token in one.keys() & other.keys()]
    above = [
        max(0.0, ranks[token] - min(others.values()))
        for ranks, others in ((one, other), (other, one))
        for token in ranks.keys() - others.keys()
    ]
    return max(shared + above, default=0.0)


def is_significant(found: float, noise: float) -> bool:
    """Whether a difference exceeds the noise, so that the adapter certainly has an effect."""
    return found > max(DIFFERENCE_MIN, NOISE_FACTOR * noise)


def is_negligible(found: float) -> bool:
    """Whether a difference is so small that noise cannot have hidden a real one."""
    return found <= DIFFERENCE_MIN
