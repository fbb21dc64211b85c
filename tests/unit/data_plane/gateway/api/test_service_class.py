"""Which class of service a request gets."""

import pytest

from core.errors import Forbidden, InvalidRequest
from data_plane.gateway.api.service_class import SHORT_TOKENS_MAX, service_class

ALL = ("near_real_time", "interactive", "batch")


@pytest.mark.parametrize(
    ("header", "service_tier", "asked"),
    [
        (None, None, "interactive"), (None, "auto", "interactive"), (None, "priority", "near_real_time"),
        (None, "flex", "batch"), (b"", "flex", "batch"), (b"batch", None, "batch"),
        (b"near_real_time", "flex", "near_real_time"),
    ],
)  # fmt: skip
def test_the_header_counts_before_openais_tier(header, service_tier, asked):
    headers = [] if header is None else [(b"x-other", b"x"), (b"x-tier", header)]
    assert service_class(headers, service_tier, ALL, output_tokens=1) == asked


def test_an_unknown_class_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="near_real_time, interactive, batch") as refused:
        service_class([(b"x-tier", b"gold")], None, ALL, output_tokens=1)
    assert refused.value.param == "x-tier"


@pytest.mark.parametrize(
    ("asked", "allowed", "granted"),
    [
        ("interactive", ALL, "interactive"), ("near_real_time", ("interactive", "batch"), "interactive"),
        ("interactive", ("near_real_time", "batch"), "batch"), ("batch", ("near_real_time",), "near_real_time"),
        ("batch", ("near_real_time", "interactive"), "interactive"),
    ],
)  # fmt: skip
def test_a_class_that_is_not_allowed_becomes_the_next_slower_one_else_the_slowest(asked, allowed, granted):
    assert service_class([(b"x-tier", asked.encode())], None, allowed, output_tokens=1) == granted


def test_a_long_answer_is_not_near_real_time():
    assert service_class([], "priority", ALL, output_tokens=SHORT_TOKENS_MAX) == "near_real_time"
    assert service_class([], "priority", ALL, output_tokens=SHORT_TOKENS_MAX + 1) == "interactive"


def test_a_key_without_a_class_of_its_plan_may_ask_for_nothing():
    with pytest.raises(Forbidden):
        service_class([], "flex", (), output_tokens=1)
