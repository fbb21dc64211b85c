"""A provider's usage counts if it can be true; otherwise the gateway's estimate does, and it says so."""

import pytest

from data_plane.gateway.providers.meter import ProviderMeter

TEXT = "four words of text."


def metered(*, prompt=100, output_max=50, text=TEXT) -> ProviderMeter:
    meter = ProviderMeter(prompt_tokens=prompt, output_max=output_max)
    meter.text(text)
    return meter


def test_the_providers_usage_counts():
    meter = metered()
    meter.report(prompt=120, cached=20, output=6)
    counts = meter.counts()
    assert (counts.sequences, counts.cached_tokens, counts.cached_known) == ([(120, 6)], 20, True)
    assert (counts.counted_here, counts.kv_page_ms) == (False, 0)


@pytest.mark.parametrize(
    "lie",
    [
        {"prompt": -1},
        {"prompt": 0},
        {"prompt": None},
        {"prompt": "120"},
        {"prompt": 120.0},
        {"prompt": True},
        {"prompt": 100 * 4 + 1025},
        {"cached": 121},
        {"cached": -1},
        {"output": -1},
        {"output": None},
        {"output": 51},
        {"output": 0},
    ],
)
def test_a_usage_that_cannot_be_true_is_not_believed(lie):
    meter = metered()
    meter.report(**{"prompt": 120, "cached": 20, "output": 6} | lie)
    counts = meter.counts()
    assert (counts.sequences, counts.counted_here) == ([(100, 5)], True)


def test_an_estimate_has_a_token_for_each_piece_or_for_four_bytes_within_what_was_allowed():
    pieces = ProviderMeter(prompt_tokens=9, output_max=50)
    for _ in range(7):
        pieces.text("a")
    assert pieces.usage.output_tokens == 7
    assert metered(text="ü" * 10).usage.output_tokens == 5
    assert metered(text="a" * 4000).usage.output_tokens == 50


def test_nothing_is_counted_before_the_answer_has_begun():
    counts = ProviderMeter(prompt_tokens=9, output_max=50).counts()
    assert (counts.total_tokens, counts.counted_here) == (0, False)


def test_an_answer_without_text_has_its_prompt():
    meter = ProviderMeter(prompt_tokens=9, output_max=50)
    meter.finished = True
    counts = meter.counts()
    assert (counts.input_tokens, counts.output_tokens, counts.counted_here) == (9, 0, True)
    meter.report(prompt=11, cached=2, output=0)
    counts = meter.counts()
    assert (counts.input_tokens, counts.output_tokens, counts.counted_here) == (11, 0, False)


def test_a_caller_that_hangs_up_pays_for_the_prompt():
    counts = ProviderMeter(prompt_tokens=9, output_max=50).counts_with_prompt()
    assert (counts.input_tokens, counts.output_tokens, counts.counted_here) == (9, 0, True)


def test_a_usage_that_comes_before_the_last_text_is_not_the_whole():
    meter = metered()
    meter.report(prompt=120, cached=20, output=6)
    meter.text("and more")
    assert meter.counts().counted_here
    meter.report(prompt=120, cached=20, output=9)
    assert meter.counts().output_tokens == 9
