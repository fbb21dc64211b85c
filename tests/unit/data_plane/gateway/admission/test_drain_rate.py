"""The drain time of a queue, estimated from observations."""

import pytest

from data_plane.gateway.admission.drain_rate import DrainRate


def test_there_is_no_estimate_before_one_second_of_observation():
    rate = DrainRate()
    assert rate.wait_s(100, 0.0) is None
    rate.begin(0.0)
    rate.record(50, 0.5)
    assert rate.wait_s(100, 0.9) is None
    assert rate.wait_s(100, 1.5) == pytest.approx(3.0, rel=0.2)


def test_time_without_a_waiting_request_does_not_count():
    rate = DrainRate()
    rate.begin(0.0)
    for step in range(20):
        rate.record(10, step / 10)  # a hundred a second
    rate.end(2.0)
    rate.begin(30.0)
    assert rate.wait_s(200, 30.0) == pytest.approx(2.0, rel=0.2)
    rate.end(30.0)
    rate.begin(100.0)
    assert rate.wait_s(200, 100.0) is None, "that was another day"


def test_the_estimate_follows_a_change_within_seconds():
    rate = DrainRate()
    rate.begin(0.0)
    for step in range(100):
        rate.record(10, step / 10)
    for step in range(100):
        rate.record(100, 10 + step / 10)
    assert rate.wait_s(1000, 20.0) == pytest.approx(1.0, rel=0.3)


def test_a_queue_that_never_drained_gives_no_estimate():
    rate = DrainRate()
    rate.begin(0.0)
    assert rate.wait_s(1000, 60.0) is None


def test_the_margin_covers_chance_and_is_small_at_a_high_rate():
    few, many = DrainRate(), DrainRate()
    for rate, requests in ((few, 10), (many, 1000)):
        rate.begin(0.0)
        for number in range(requests):
            rate.record(1000 // requests, 10 * number / requests)  # a hundred tokens a second
    assert few.wait_s(400, 10.0) == pytest.approx(4.0, rel=0.2)
    assert few.wait_s_upper_bound(400, 10.0) == pytest.approx(8.0, rel=0.2)  # four requests, give or take two, twice
    assert many.wait_s_upper_bound(400, 10.0) == pytest.approx(4.4, rel=0.2)
    assert DrainRate().wait_s_upper_bound(400, 0.0) is None
