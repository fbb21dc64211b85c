"""Reads the tokens that the engine processed for tenants: its own counters minus the tokens of its agent's probes."""

import re
import time
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec
import redis

from core import redis_keys
from core.contracts.replicas import EngineCounters, ReplicaStatus

_SETTLED_S: Final = 15


@dataclass(frozen=True, kw_only=True)
class EngineCount:
    """One reading. Readings of different boots cannot be subtracted: the engine restarted in between."""

    boot_id: str
    tokens: int


def read_engine_count(redis_url: str) -> EngineCount:
    """Read the counters from the engine's metrics page, and how many of them were probes from its agent.

    Waits until the agent's published copy agrees with the page, so that no probe is counted on one side only.
    Raises RuntimeError when they do not agree within 15 s.
    """
    deadline = time.monotonic() + _SETTLED_S
    with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
        while time.monotonic() < deadline:
            for name in client.zrange(redis_keys.REPLICAS, 0, -1):
                published = client.get(redis_keys.replica(name.decode()))
                if published is None:
                    continue
                status = msgspec.json.decode(published, type=ReplicaStatus)
                copy = client.hget(redis_keys.ENGINE_COUNTERS, f"{status.id}/{status.boot_id}")
                if copy is None:
                    continue
                counters = msgspec.json.decode(copy, type=EngineCounters)
                if (counters.prompt_tokens, counters.generation_tokens) == _metrics_page(status.url):
                    return EngineCount(boot_id=status.boot_id, tokens=counters.tenant_tokens)
            time.sleep(0.2)
    raise RuntimeError(f"the engine's counters and its agent's did not agree within {_SETTLED_S} s")


def _metrics_page(url: str) -> tuple[int, int]:
    text = httpx.get(f"{url}/metrics", timeout=5).text
    prompt, generation = (
        sum(
            float(value)
            for value in re.findall(rf"^vllm:{name}_tokens_total(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        )
        for name in ("prompt", "generation")
    )
    return int(prompt), int(generation)
