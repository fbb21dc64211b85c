"""Points, picks and folds of the routing benchmark, and that its set is what it says."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routing.curves import Scored, curve, folds, pick, point, random_mix
from benchmarks.routing.training import read_prompts

SCORED = [Scored(0.9, True), Scored(0.8, True), Scored(0.6, False), Scored(0.2, False)]
some = st.lists(st.builds(Scored, st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("threshold", "cost", "quality"), [(1.0, 1.0, 1.0), (0.8, 0.55, 1.0), (0.5, 0.325, 0.75), (0.0, 0.1, 0.5)]
)
def test_a_threshold_costs_less_the_more_it_trusts_the_smaller_member(threshold, cost, quality):
    assert point(SCORED, threshold, 0.1) == (threshold, pytest.approx(cost), quality)


def test_a_cascade_pays_for_both_answers_where_it_escalates():
    assert point(SCORED, 0.8, 0.1, both=True).cost == pytest.approx((2 * 0.1 + 2 * 1.1) / 4)


def test_the_cheapest_threshold_of_the_wanted_quality_is_picked():
    assert pick(SCORED, 1.0, 0.1) == 0.8
    assert pick(SCORED, 0.7, 0.1) == 0.6


@given(some)
def test_a_curve_goes_from_always_large_to_always_small(scored):
    points = curve(scored, 0.1)
    assert (points[0].cost, points[0].quality) == (1.0, 1.0)
    assert points[-1].cost == pytest.approx(0.1)
    assert points[-1].quality == pytest.approx(sum(each.small_suffices for each in scored) / len(scored))
    costs, qualities = [each.cost for each in points], [each.quality for each in points]
    assert costs == sorted(costs, reverse=True)
    assert qualities == sorted(qualities, reverse=True)


def test_a_random_mix_is_the_line_between_the_two_ends():
    assert random_mix(SCORED, 1.0, 0.1) == 1.0
    assert random_mix(SCORED, 0.75, 0.1) == pytest.approx(0.55)
    assert random_mix(SCORED, 0.5, 0.1) == pytest.approx(0.1)


@given(st.integers(10, 60), st.integers(3, 6))
def test_each_prompt_is_reported_on_once_by_a_model_that_has_not_seen_it(count, parts):
    found = list(folds(count, parts))
    assert sorted(place for *_, tested in found for place in tested) == list(range(count))
    for trained, picked, tested in found:
        assert not {*trained} & {*picked, *tested}
        assert not {*picked} & {*tested}


def test_the_prompts_are_different_and_both_labels_are_common():
    prompts = read_prompts()
    assert len({prompt.text for prompt in prompts}) == len(prompts) > 250
    assert all(prompt.text.strip() for prompt in prompts)
    labels = Counter(prompt.small_suffices for prompt in prompts)
    assert min(labels.values()) > 100
