"""The body that a form's fields make."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.console.form_body import body_of
from core.errors import InvalidRequest


def test_fields_make_the_body_that_their_names_say():
    fields = [
        ("name", " prod "), ("limits.kv_pages:int", "1,024"), ("limits.requests_per_minute:int", ""),
        ("scopes:list", "inference"), ("scopes:list", "usage:read"), ("pinned:bool", "false"),
        ("names:lines", "a\r\nb, c"), ("settings:json", '{"slots": 4}'), ("note:null", ""),
    ]  # fmt: skip
    assert body_of(fields) == {
        "name": "prod",
        "limits": {"kv_pages": 1024},
        "scopes": ["inference", "usage:read"],
        "pinned": False,
        "names": ["a", "b", "c"],
        "settings": {"slots": 4},
        "note": None,
    }


def test_what_is_no_number_is_left_to_the_route_to_refuse():
    assert body_of([("count:int", "many"), ("paid:bool", "perhaps")]) == {"count": "many", "paid": "perhaps"}


@pytest.mark.parametrize("name", ["_key", "A", "a.b.c.d.e", "a:float", "a b", ""])
def test_a_name_that_no_form_has_is_refused(name):
    with pytest.raises(InvalidRequest):
        body_of([(name, "x")])


@given(st.lists(st.tuples(st.text(), st.text())))
def test_any_fields_make_a_body_or_a_refusal(fields):
    with contextlib.suppress(InvalidRequest):
        assert isinstance(body_of(fields), dict)
