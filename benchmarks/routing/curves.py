"""Cost against quality of a rule that chooses between a smaller and a better member, by its threshold. Pure.

A prompt's score says how much the rule trusts the smaller member with it. The cost of an answer is 1 for the better
member and ``ratio`` for the smaller one; in a cascade (``both``) the better one's answer costs both. Quality is the
share of the prompts whose member suffices.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Scored(NamedTuple):
    """A prompt as a rule sees it."""

    score: float
    small_suffices: bool


class Point(NamedTuple):
    """What a threshold costs and gives: scores from it on get the smaller member."""

    threshold: float
    cost: float
    quality: float


def point(scored: Sequence[Scored], threshold: float, ratio: float, *, both: bool = False) -> Point:
    """One threshold."""
    small = [each for each in scored if each.score >= threshold]
    wrong = sum(not each.small_suffices for each in small)
    count = len(scored)
    cost = ratio * len(small) + (1 + ratio * both) * (count - len(small))
    return Point(threshold, cost / count, 1 - wrong / count)


def curve(scored: Sequence[Scored], ratio: float, *, both: bool = False) -> list[Point]:
    """Every threshold that differs, from the most expensive one on."""
    thresholds = sorted({each.score for each in scored}, reverse=True)
    return [point(scored, threshold, ratio, both=both) for threshold in [float("inf"), *thresholds]]


def pick(scored: Sequence[Scored], quality: float, ratio: float, *, both: bool = False) -> float:
    """The threshold of the cheapest point of at least this quality."""
    good = [each for each in curve(scored, ratio, both=both) if each.quality >= quality]
    return min(good, key=lambda each: (each.cost, -each.quality)).threshold


def random_mix(scored: Sequence[Scored], quality: float, ratio: float) -> float:
    """The cost at this quality of a rule that draws the member: on the line between always small and always large."""
    small_quality = sum(each.small_suffices for each in scored) / len(scored)
    share = min(1.0, (1 - quality) / (1 - small_quality)) if small_quality < 1 else 1.0
    return 1 - (1 - ratio) * share


def folds(count: int, parts: int) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """Places to train on, to pick the threshold on, and to report on. Each place is reported on once."""
    for part in range(parts):
        tested = list(range(part, count, parts))
        picked = list(range((part + 1) % parts, count, parts))
        used = {*tested, *picked}
        yield [place for place in range(count) if place not in used], picked, tested
