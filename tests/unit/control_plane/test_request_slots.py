"""Concurrent requests are limited before authentication, for each tenant, for all tenants, and for admins."""

import contextlib

import pytest

from control_plane.request_slots import RequestSlots
from core.errors import TooManyRequests, Unavailable
from core.request_rate import RequestRate


@pytest.fixture
def slots() -> RequestSlots:
    return RequestSlots(
        requests_max=4, tenant_requests_max=2, admin_requests_max=1,
        tenant_rate=RequestRate(20, clock=lambda: 0.0), address_rate=RequestRate(50, clock=lambda: 0.0),
    )  # fmt: skip


@pytest.fixture
def running():
    """Requests that enter here run until the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_tenant_at_its_limit_leaves_slots_to_other_tenants(slots, running):
    for _ in range(2):
        running.enter_context(slots.acquire("::1")).authenticated("tn_a")
    with pytest.raises(TooManyRequests) as refused, slots.acquire("::1") as slot:
        slot.authenticated("tn_a")
    assert (refused.value.code, refused.value.retry_after_s) == ("too_many_concurrent_requests", 1)
    running.enter_context(slots.acquire("::1")).authenticated("tn_b")


def test_all_tenants_together_leave_slots_to_admins(slots, running):
    for tenant in ("tn_a", "tn_a", "tn_b", "tn_b"):
        running.enter_context(slots.acquire("::1")).authenticated(tenant)
    with pytest.raises(Unavailable), slots.acquire("::1") as slot:
        slot.authenticated("tn_c")
    running.enter_context(slots.acquire("::1")).authenticated(None)
    with pytest.raises(Unavailable), slots.acquire("::1") as slot:
        slot.authenticated(None)


def test_requests_before_authentication_are_limited(slots, running):
    waiting = [running.enter_context(slots.acquire("::1")) for _ in range(4)]
    with pytest.raises(Unavailable):
        slots.acquire("::1")
    waiting[0].authenticated("tn_a")
    running.enter_context(slots.acquire("::1"))


def test_an_ended_or_refused_request_leaves_no_trace(slots):
    for _ in range(10):
        with slots.acquire("::1") as slot:
            slot.authenticated("tn_a")
        with slots.acquire("::1"):
            pass
        with slots.acquire("::1") as slot:
            slot.authenticated(None)
            slot.authenticated(None)
    with contextlib.ExitStack() as running:
        for _ in range(2):
            running.enter_context(slots.acquire("::1")).authenticated("tn_a")
        for _ in range(10):
            with contextlib.suppress(TooManyRequests), slots.acquire("::1") as slot:
                slot.authenticated("tn_a")
    assert not +slots._running
    assert not slots._running_by_tenant


@pytest.mark.parametrize(("tenant", "accepted", "kind"), [("tn_a", 20, "tenant"), (None, 50, "address")])
def test_the_rate_of_requests_is_limited_by_tenant_and_by_address(slots, tenant, accepted, kind):
    for _ in range(accepted):
        with slots.acquire("::1") as slot:
            slot.authenticated(tenant)
    with pytest.raises(TooManyRequests, match=f"This {kind} sends more than") as refused, slots.acquire("::1") as slot:
        slot.authenticated(tenant)
    assert refused.value.code == "too_many_requests"
    with slots.acquire("::2") as slot:
        slot.authenticated("tn_b")
