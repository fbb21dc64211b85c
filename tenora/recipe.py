"""How each example adapter is trained: everything besides base, dataset and seed that its weights depend on."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``alpha / rank`` scales the adapter's output.

    ``threads`` is fixed rather than taken from the machine, because sums that are split differently round differently.
    """

    epochs: int
    learning_rate: float
    batch_examples: int = 8
    rank: int = 8
    alpha: int = 16
    threads: int = 2

    def steps(self, examples: int) -> int:
        """Optimiser steps for a dataset of so many examples; an epoch's last batch may be smaller."""
        return self.epochs * -(-examples // self.batch_examples)


# Chosen on folds of the training sets; the held-out files were not used for it.
RECIPES: Final = {
    "ticket_router": Recipe(epochs=6, learning_rate=2e-3),
    "outdoor_voice": Recipe(epochs=8, learning_rate=2e-3),
}
