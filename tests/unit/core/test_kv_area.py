"""The area under a growing request equals the integral of its step function, however the time is cut."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.kv_area import KvArea, PageTime, even_growth_page_ms
from core.kv_pages import page_ms, pages_for

BLOCKS = st.sampled_from([16, 32, 128])
CHANGES = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from("abc"), st.one_of(st.none(), st.integers(1, 600))), max_size=30
)
"""(milliseconds since the change before, sequence, tokens that it holds from now on, or None for a release)."""


def play(changes, block_tokens, looks=()):
    """The area after these changes, the time of the last one, and (time, page-milliseconds) at each look."""
    area, now, seen = KvArea(block_tokens), 1_000_000, []
    for number, (wait_ms, sequence, tokens) in enumerate(changes):
        now += wait_ms
        if tokens is None:
            area.release(sequence, now)
        else:
            area.hold(sequence, tokens, now)
        if number in looks:
            seen.append((now, area.page_ms(now)))
    return area, now, seen


@given(changes=CHANGES, block_tokens=BLOCKS, more_ms=st.integers(0, 1000))
def test_it_equals_the_integral_of_the_step_function(changes, block_tokens, more_ms):
    area, now, _ = play(changes, block_tokens)
    held, expected = {}, 0
    for wait_ms, sequence, tokens in changes:
        expected += sum(held.values()) * wait_ms
        held[sequence] = 0 if tokens is None else pages_for(tokens, block_tokens)
    expected += sum(held.values()) * more_ms
    assert area.page_ms(now + more_ms) == expected
    assert area.pages == sum(held.values())


@given(changes=CHANGES, block_tokens=BLOCKS, waits=st.lists(st.integers(0, 100), max_size=5))
def test_it_never_decreases_and_looking_at_it_changes_nothing(changes, block_tokens, waits):
    area, now, seen = play(changes, block_tokens, looks=range(len(changes)))
    ends = [now + sum(waits[: count + 1]) for count in range(len(waits))]
    values = [value for _, value in seen] + [area.page_ms(end) for end in ends]
    assert values == sorted(values)
    unseen, end, _ = play(changes, block_tokens)
    assert (unseen.page_ms(end), area.page_ms(now)) == (area.page_ms(now), unseen.page_ms(end))


@given(changes=CHANGES, block_tokens=BLOCKS, cut=st.integers(0, 30), more_ms=st.integers(0, 100))
def test_two_parts_of_the_time_add_up_to_the_whole(changes, block_tokens, cut, more_ms):
    whole, now, _ = play(changes, block_tokens)
    first, middle, _ = play(changes[:cut], block_tokens)
    second, at = KvArea(block_tokens), middle
    for sequence in "abc":
        tokens = next((tokens for _, name, tokens in reversed(changes[:cut]) if name == sequence), None)
        if tokens is not None:
            second.hold(sequence, tokens, at)
    for wait_ms, sequence, tokens in changes[cut:]:
        at += wait_ms
        if tokens is None:
            second.release(sequence, at)
        else:
            second.hold(sequence, tokens, at)
    assert first.page_ms(middle) + second.page_ms(at + more_ms) == whole.page_ms(now + more_ms)


@given(changes=CHANGES, block_tokens=BLOCKS, more_ms=st.integers(0, 100))
def test_the_requests_of_an_engine_add_up_to_its_total(changes, block_tokens, more_ms):
    total, requests, now = PageTime(), {name: KvArea(block_tokens) for name in "abc"}, 5
    for wait_ms, name, tokens in changes:
        now += wait_ms
        grown = -requests[name].release("0", now) if tokens is None else requests[name].hold("0", tokens, now)
        total.set_pages(total.pages + grown, now)
    assert total.page_ms(now + more_ms) == sum(each.page_ms(now + more_ms) for each in requests.values())


def test_waiting_and_preemption_cost_nothing():
    area = KvArea(16)
    assert area.page_ms(5000) == 0, "it waits in the engine's queue"
    area.hold("0", 40, 5000)
    area.release("0", 5100)
    assert (area.page_ms(5100), area.page_ms(9000), area.pages) == (300, 300, 0)
    area.hold("0", 41, 9000)
    assert area.page_ms(9010) == 330


def test_a_change_that_arrives_late_takes_nothing_back():
    area = KvArea(16)
    area.hold("0", 16, 100)
    area.hold("0", 32, 200)
    area.hold("0", 48, 150)
    assert (area.page_ms(150), area.page_ms(210)) == (100, 130)


@given(prompt=st.integers(1, 500), output=st.integers(1, 300), duration_ms=st.integers(1, 100_000), block_tokens=BLOCKS)
def test_even_growth_is_the_area_of_one_token_after_the_other(prompt, output, duration_ms, block_tokens):
    each = Fraction(duration_ms, output)
    area = sum(pages_for(prompt + number, block_tokens) * each for number in range(1, output + 1))
    found = even_growth_page_ms(prompt, output, duration_ms, block_tokens)
    assert area <= found < area + block_tokens // 16
    assert found <= page_ms(prompt + output, duration_ms, block_tokens)


@pytest.mark.parametrize(("output", "duration_ms"), [(0, 1000), (5, 0), (5, -3)])
def test_nothing_is_held_without_a_token_or_without_time(output, duration_ms):
    assert even_growth_page_ms(100, output, duration_ms) == 0
