"""Which placement group serves an adapter, by its rank. A group's rank class is the largest LoRA rank that its replicas
load; an adapter belongs to the smallest class that fits, because a LoRA slot's memory grows with the class.
"""

from collections.abc import Iterable
from typing import Final

VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The rank classes that vLLM 0.32 allows (``MaxLoRARanks``)."""


def fits(rank: int, rank_class: int) -> bool:
    """Whether replicas of a rank class can load an adapter of this rank."""
    return rank <= rank_class


def class_for(rank: int, rank_classes: Iterable[int]) -> int | None:
    """The smallest of these classes that fits the rank; None where none of them does."""
    return min((rank_class for rank_class in rank_classes if fits(rank, rank_class)), default=None)


def rank_above(rank_class: int, rank_classes: Iterable[int]) -> int:
    """The next smaller of these classes, or 0. ``class_for`` gives ``rank_class`` to the ranks above that number, up to
    ``rank_class`` itself: the form of the rule that a database query needs.
    """
    return max((smaller for smaller in rank_classes if smaller < rank_class), default=0)
