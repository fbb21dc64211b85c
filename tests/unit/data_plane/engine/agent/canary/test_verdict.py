"""The canary's verdict: which difference is an effect and which is the engine's noise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.engine.agent.canary.verdict import (
    DIFFERENCE_MIN,
    CanaryAnswer,
    TokenLogprobs,
    difference,
    is_negligible,
    is_significant,
)

TOKENS = [f"token_id:{number}" for number in range(8)]
steps = st.builds(
    lambda ranks: TokenLogprobs(max(ranks, key=ranks.get), ranks),
    st.dictionaries(st.sampled_from(TOKENS), st.floats(-20, 0), min_size=5, max_size=5),
)
answers = st.lists(
    st.builds(lambda found: CanaryAnswer("", tuple(found)), st.lists(steps, min_size=1, max_size=6)),
    min_size=3,
    max_size=3,
)


def shifted(answer: CanaryAnswer, by: float) -> CanaryAnswer:
    moved = (
        TokenLogprobs(step.token, {token: rank + by for token, rank in step.logprobs.items()}) for step in answer.steps
    )
    return CanaryAnswer(answer.text, tuple(moved))


@given(answers)
def test_nothing_differs_from_itself(found):
    assert difference(found, found) == 0
    assert is_negligible(0)
    assert not is_significant(0, 0)


@given(answers, answers)
def test_the_difference_is_symmetric(one, other):
    assert difference(one, other) == difference(other, one) >= 0


@given(answers, st.floats(0.01, 5))
def test_a_shift_is_measured_exactly(found, by):
    assert difference(found, [shifted(answer, by) for answer in found]) == pytest.approx(by)


def test_tokens_after_the_first_different_one_are_not_compared():
    same = TokenLogprobs("a", {"a": -0.1, "b": -3.0})
    parting = (TokenLogprobs("a", {"a": -0.1, "b": -0.2}), TokenLogprobs("b", {"a": -0.2, "b": -0.1}))
    after = (TokenLogprobs("c", {"c": -1.0}), TokenLogprobs("c", {"c": -9.0}))
    one, other = (CanaryAnswer("", (same, here, later)) for here, later in zip(parting, after, strict=True))
    assert difference([one], [other]) == pytest.approx(0.1)


def test_a_token_that_only_one_side_ranks_counts_by_how_far_it_is_above_the_others():
    one, other = (CanaryAnswer("", (TokenLogprobs("a", {"a": -0.1, third: -2.0}),)) for third in ("b", "c"))
    assert difference([one], [other]) == 0
    risen = CanaryAnswer("", (TokenLogprobs("a", {"a": -0.1, "b": -1.5}),))
    assert difference([risen], [other]) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -9999.0])
def test_a_number_that_is_not_finite_is_found_anywhere(value):
    fine = TokenLogprobs("a", {"a": -0.1, "b": -2.0})
    assert CanaryAnswer("", (fine,)).is_finite
    assert not CanaryAnswer("", (fine, TokenLogprobs("a", {"a": -0.1, "b": value}))).is_finite
    assert not CanaryAnswer("", ()).is_finite


@pytest.mark.parametrize(
    ("found", "noise", "plain", "nothing"),
    [
        (0.0, 0.0, False, True),  # B = 0 on an idle engine
        (0.0, 0.02, False, True),
        (0.015, 0.01, False, False),  # B = 0 beside other requests: runs again
        (0.2, 0.01, True, False),
        (2 * DIFFERENCE_MIN, 0.0, True, False),
    ],
)
def test_noise_is_distinguished_from_an_effect(found, noise, plain, nothing):
    assert is_significant(found, noise) is plain
    assert is_negligible(found) is nothing
