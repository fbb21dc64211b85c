"""Counts are remembered by whose they are, within a bound, the least used going first."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.api.prompt_counter import KnownCounts


def size_bytes(text: str) -> int:
    return sys.getsizeof(text) + 250


def test_what_one_tenant_has_said_is_not_known_of_another():
    known = KnownCounts(100_000)
    known.put("tn_1", "our secret prompt", 4)
    assert known.get("tn_1", "our secret prompt") == 4
    assert known.get("tn_2", "our secret prompt") is None


def test_what_was_not_asked_for_the_longest_goes_first():
    texts = [chr(97 + number) for number in range(21)]
    known = KnownCounts(20 * size_bytes("a"))
    for text in texts[:20]:
        known.put("tn_1", text, 1)
    assert known.get("tn_1", texts[0]) == 1
    known.put("tn_1", texts[20], 1)
    assert [text for text in texts if known.get("tn_1", text) is None] == [texts[1]]


def test_one_long_text_does_not_drive_out_the_others():
    known = KnownCounts(100_000)
    known.put("tn_1", "hello", 1)
    known.put("tn_2", "x" * 50_000, 10_000)
    assert known.get("tn_1", "hello") == 1
    assert known.get("tn_2", "x" * 50_000) is None


@given(texts=st.lists(st.text(max_size=50), max_size=60), max_bytes=st.integers(0, 20_000))
def test_what_is_remembered_is_right_and_stays_within_its_bound(texts, max_bytes):
    known = KnownCounts(max_bytes)
    for text in texts:
        known.put("tn_1", text, len(text))
    kept = [text for text in set(texts) if known.get("tn_1", text) is not None]
    assert all(known.get("tn_1", text) == len(text) for text in kept)
    assert sum(map(size_bytes, kept)) <= max_bytes
