"""Requests are counted by adapter for exactly as long as they run."""

import asyncio

import pytest

from data_plane.engine.middleware.in_flight import InFlightRequests


async def test_an_adapter_is_idle_once_its_last_request_has_ended():
    requests = InFlightRequests()
    with requests.track("a", "one"):
        with requests.track("a", "two"):
            assert requests.ids("a") == {"one", "two"}
            waiting = asyncio.create_task(requests.wait_idle("a", 10))
            await asyncio.sleep(0)
        assert not waiting.done()
        assert set(requests.names) == {"a"}
    assert await waiting
    assert not requests.names


async def test_waiting_ends_after_its_timeout_and_returns_false():
    requests = InFlightRequests()
    with requests.track("a", "one"):
        assert not await requests.wait_idle("a", 0.01)
    assert await requests.wait_idle("a", 0)


async def test_a_failed_request_no_longer_counts():
    requests = InFlightRequests()
    with pytest.raises(ValueError, match="lost"), requests.track("a", "one"):
        raise ValueError("lost")
    assert requests.ids("a") == frozenset()


async def test_a_prefetch_is_waited_for_and_is_no_request():
    running = InFlightRequests()
    with running.track("a", None):
        assert running.ids("a") == frozenset()
        assert not await running.wait_idle("a", 0.01)
    assert await running.wait_idle("a", 0)
