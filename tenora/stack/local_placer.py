"""The supervisor's side of pools: what is wanted of them, as copies that it runs beside the stack's own replicas.

A thread reads Redis, because a store that does not answer must not stop the supervisor. A pool that is no longer in
Redis, and a Redis that does not answer, change nothing.
"""

import itertools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import structlog

from core import redis_keys
from core.contracts.fleet import WantedPool, read_wanted

_PERIOD_S: Final = 2.0
_TIMEOUT_S: Final = 2.0
_log: Final = structlog.get_logger()


@dataclass(frozen=True)
class ReplicaCopy:
    """A replica by the name of its program, and what is set for it. Those of one ``group`` start one after the
    other.
    """

    group: str
    name: str
    environment: Mapping[str, str]


def copies_of(pools: Iterable[WantedPool], states: Mapping[str, str], *, copies_max: int) -> list[ReplicaCopy]:
    """The copies to run, given the states of the programs that there are. Those that are ready stay, then those that
    start; new ones have free numbers. Of more than ``copies_max`` the last are left out.
    """
    found: list[ReplicaCopy] = []
    for pool in sorted(pools, key=lambda pool: pool.pool):
        for revision in sorted(pool.revisions, key=lambda revision: revision.number):
            group = f"{pool.pool}-{revision.number}"
            numbers = sorted(_numbers(group, states, revision.replicas))
            found += [ReplicaCopy(group, f"{group}-{number}", revision.environment) for number in numbers]
    return found[:copies_max]


def _numbers(group: str, states: Mapping[str, str], wanted: int) -> list[int]:
    there = {
        int(number): states[name]
        for name in states
        for prefix, _, number in (name.rpartition("-"),)
        if prefix == group and number.isdecimal()
    }
    kept = sorted((number for number in there if there[number] != "stopping"), key=lambda n: (there[n] != "ready", n))
    new = (number for number in itertools.count(1) if number not in there)
    return list(itertools.islice(itertools.chain(kept, new), wanted))


class WantedPools:
    """The newest entries that could be read, by pool."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._pools: dict[str, WantedPool] = {}
        self._left_out = 0

    def copies(self, states: Mapping[str, str], *, copies_max: int) -> list[ReplicaCopy]:
        """What should run, as ``copies_of`` says."""
        pools = list(self._pools.values())
        left_out = sum(revision.replicas for pool in pools for revision in pool.revisions) - copies_max
        if left_out != self._left_out and left_out > 0:
            _log.warning("more replicas are wanted than this machine has cores for", left_out=left_out)
        self._left_out = left_out
        return copies_of(pools, states, copies_max=copies_max)

    def start(self) -> None:
        """Read from now on, in a thread that ends with the process."""
        threading.Thread(target=self._read_always, name="wanted-pools", daemon=True).start()

    def _read_always(self) -> None:
        import redis  # late: the supervisor needs it only here

        with redis.Redis.from_url(self._redis_url, socket_timeout=_TIMEOUT_S) as client:
            while True:
                time.sleep(_PERIOD_S)
                try:
                    found = cast("dict[bytes, bytes]", client.hgetall(redis_keys.FLEET_WANTED))
                except (redis.RedisError, OSError):
                    continue  # Valkey starts or restarts
                self._pools = self._pools | {pool.pool: pool for pool in map(read_wanted, found.values()) if pool}


def cores_of(number: int, replicas: int, cores: Sequence[int]) -> str:
    """The cores of one of several replicas, from 0, as vLLM takes them: an equal share, or one core in turn where there
    are more replicas than cores.
    """
    share = len(cores) // replicas
    mine = cores[number * share : (number + 1) * share] if share else [cores[number % len(cores)]]
    return ",".join(map(str, mine))
