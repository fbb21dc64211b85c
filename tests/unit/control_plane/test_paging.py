"""Cursors decode to the id that they encode, and every other string is refused; pages end with a cursor or the list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.paging import decode_cursor, encode_cursor, page_from
from core.errors import InvalidRequest
from core.ids import new_id


def test_a_cursor_decodes_to_its_id():
    for last in (new_id("tn"), new_id("rev"), "smollm2-135m-instruct", "a.b_c"):
        assert decode_cursor(encode_cursor(last)) == last


def test_an_absent_cursor_is_the_first_page():
    assert decode_cursor(None) is None


@given(st.text(max_size=80))
def test_any_other_cursor_is_refused_by_name(text):
    with pytest.raises(InvalidRequest) as refused:
        decode_cursor(text)
    assert (refused.value.code, refused.value.param) == ("invalid_cursor", "cursor")


@pytest.mark.parametrize("forged", ["", "=", "é", "a" * 200, encode_cursor("x") + "=", encode_cursor("'; DROP")])
def test_a_forged_cursor_is_refused(forged):
    with pytest.raises(InvalidRequest):
        decode_cursor(forged)


def test_a_page_has_a_cursor_where_the_list_goes_on():
    def read(*, after, limit):
        return [each for each in "abcd" if after is None or each > after][:limit]

    first = page_from(read, cursor=None, limit=2, key=str)
    last = page_from(read, cursor=first.next_cursor, limit=2, key=str)
    assert (first.data, last.data, last.next_cursor) == (["a", "b"], ["c", "d"], None)
