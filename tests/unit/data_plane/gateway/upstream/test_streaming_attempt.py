"""The percentile of a stream's pauses, which are counted in buckets, beside the exact one."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.upstream.streaming_attempt import TextPauses


@given(st.lists(st.floats(0.0001, 600), min_size=1, max_size=200))
def test_the_95th_percentile_is_at_most_an_eighth_and_a_millisecond_too_large(pauses_s):
    pauses = TextPauses()
    for now in itertools.accumulate(pauses_s, initial=1000.0):
        pauses.arrived(now)
    exact_ms = sorted(pauses_s, reverse=True)[len(pauses_s) // 20] * 1000
    assert exact_ms - 0.01 <= pauses.p95_ms <= exact_ms * 9 / 8 + 1.01


def test_one_arrival_has_no_pause():
    pauses = TextPauses()
    pauses.arrived(1.0)
    assert pauses.p95_ms is None
