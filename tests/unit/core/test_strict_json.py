"""JSON from untrusted senders."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.strict_json import JsonRefused, parse, shorten

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(values)
def test_written_json_is_read_back(value):
    assert parse(json.dumps(value).encode(), depth_max=64) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[NaN]", "NaN is not a JSON number"),
        (b"-Infinity", "-Infinity is not a JSON number"),
        (b"1e400", "1e400. is not a JSON number"),
        (b'{"a":1,"a":2}', '"a" occurs twice'),
        (b'{"a":{"b":1,"b":1}}', "occurs twice"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"1" * 5000, "thousands of digits"),
        (b"[[[1]]]", "nested more than 2 deep"),
    ],
)
def test_non_strict_json_is_refused_with_the_reason(text, why):
    with pytest.raises(JsonRefused, match=why):
        parse(text, depth_max=2)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (rb'"\ud800"', None),
        (rb'{"a": ["x", "\uDFFF"]}', "a"),
        (rb'{"a": {"\ud800": 1}}', "\\ud800"),
        (rb'{"\ud800": 1, "\ud800": 2}', "\\ud800"),
        (rb'{"a": "\udc00\ud83d"}', "a"),
    ],
)
def test_half_a_character_is_refused_and_named_in_text_that_can_be_sent(text, key):
    with pytest.raises(JsonRefused) as refusal:
        parse(text, depth_max=8)
    assert refusal.value.key == key
    str(refusal.value).encode()


def test_whole_characters_may_be_escaped():
    assert parse(rb'["\ud83d\ude00", "\\ud800"]', depth_max=8) == ["\N{GRINNING FACE}", "\\ud800"]


def test_brackets_inside_strings_do_not_count_as_depth():
    assert parse(rb'["[[[[\"{{{{"]', depth_max=1) == ['[[[["{{{{']


@pytest.mark.parametrize("text", [b"[" * 250_000, b'"' * 250_000, b'{"a":' * 50_000, b"\\" * 250_000])
def test_hostile_text_is_refused_quickly(text):
    started = time.process_time()
    with pytest.raises(JsonRefused):
        parse(text, depth_max=8)
    assert time.process_time() - started < 1


def test_values_shown_to_people_are_short_and_plain():
    assert shorten("a\x00\u202eb") == '"a\\u0000\\u202eb"'
    assert len(shorten("x" * 1000)) == 80


@pytest.mark.parametrize("wrong", [b"NaN", b"-Infinity", b"1e999", b"[1, [NaN]]"])
def test_a_wrong_number_is_named_by_the_field_that_holds_it(wrong):
    with pytest.raises(JsonRefused, match="is not a JSON number") as refusal:
        parse(b'{"a": {"temperature": %s}}' % wrong, depth_max=8)
    assert refusal.value.key == "temperature"
