"""The labelled prompts, and the training of the model of the rule ``classified``: logistic regression by AdaGrad. Pure,
and the same at every run.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from data_plane.gateway.routing.classifier import BUCKETS, LinearModel, features

PROMPTS: Final = Path(__file__).with_name("prompts.tsv")
_EPOCHS: Final = 40
_RATE: Final = 0.1
_DECAY: Final = 1e-3  # of the weights that a prompt touches
_DECIMALS: Final = 3


class Prompt(NamedTuple):
    """A prompt, and whether its author holds a small model for good enough."""

    text: str
    small_suffices: bool


def read_prompts() -> list[Prompt]:
    """The set in an order that is mixed, and always the same."""
    lines = [line.partition("\t") for line in PROMPTS.read_text().splitlines()]
    prompts = [Prompt(text, label == "small") for label, _, text in lines]
    random.Random(7).shuffle(prompts)
    return prompts


def train(prompts: Sequence[Prompt]) -> LinearModel:
    """A model of these prompts."""
    model, order = LinearModel(), random.Random(7)
    sums, bias_sum = [1e-6] * BUCKETS, 1e-6
    examples = [(features(prompt.text), float(prompt.small_suffices)) for prompt in prompts]
    for _ in range(_EPOCHS):
        order.shuffle(examples)
        for found, label in examples:
            error, scale = model.of(found) - label, 1 / math.sqrt(len(found))
            bias_sum += error * error
            model.bias -= _RATE * error / math.sqrt(bias_sum)
            for bucket in found:
                slope = error * scale + _DECAY * model.weights[bucket]
                sums[bucket] += slope * slope
                model.weights[bucket] -= _RATE * slope / math.sqrt(sums[bucket])
    return model


def stored(model: LinearModel) -> bytes:
    """The file of a model's weights."""
    weights = [round(weight, _DECIMALS) for weight in model.weights]
    return msgspec.json.encode(LinearModel(bias=round(model.bias, _DECIMALS), weights=weights)) + b"\n"
