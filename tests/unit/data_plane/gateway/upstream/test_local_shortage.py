"""A shortage of connections in this process says nothing about a replica: neither a failure nor a recovery."""

import asyncio
from types import SimpleNamespace

import pytest

from core.contracts.replicas import ReplicaStatus
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import Dispatch
from data_plane.gateway.upstream.engine_client import EngineClient, LocalShortage
from data_plane.gateway.upstream.relay import Relay, RetryBudget
from tests.fixtures.gateway.requests import inference_request
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

SETTINGS = GatewaySettings(
    redis_url="redis://x",
    key_pepper="p" * 16,
    engine_key="e" * 16,
    salt_secret="s" * 16,
    snapshot_public_keys=PUBLIC_KEYS,
)
REPLICA = ReplicaStatus(
    id="rep_one", url="http://127.0.0.1:1", base_model="tiny-chat", state="ready", boot_id="boot_1", block_tokens=16,
    pages_total=8, pages_free=8, slots=1, running_requests=0, waiting_requests=0, heartbeat_ms=0, rank_max=16,
    memory_adapters=1, residency_version=0,
)  # fmt: skip


@pytest.mark.parametrize("failed_before", [False, True])
async def test_a_local_shortage_is_reported_as_no_replicas_failure(failed_before):
    async def healthy(_replica):
        return True

    upstream = EngineClient(
        engine_key="e", connect_s=1, keepalive_s=1, connections_max=0, connections_spare=1,
        head_max_bytes=1024, unread_max_bytes=1024,
    )  # fmt: skip
    breakers = CircuitBreakers(healthy, failures=1, open_s=60, open_max_s=60, trial_s=1)
    if failed_before:
        breakers.failed(REPLICA)
    retries = RetryBudget(percent=10, burst=1)
    relay = Relay(upstream, breakers, None, None, retries, SETTINGS)
    staying = SimpleNamespace(started=False, watch=lambda _on_gone: None)
    dispatch = Dispatch(REPLICA, None, b"{}", [], asyncio.get_running_loop().time() + 5)
    attempt = relay.attempt(staying, inference_request(), dispatch)
    with pytest.raises(LocalShortage) as refused:
        await relay.run(attempt)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert breakers.allows(REPLICA) is not failed_before
