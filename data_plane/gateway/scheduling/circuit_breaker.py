"""Circuit breakers, one for each replica. A closed circuit passes requests; after consecutive failures it opens and
blocks them; after a pause and a good health check it is half open, and one trial request decides. The caller decides
what a failure is. A failure to load an adapter opens no circuit: the replica is avoided for that adapter only, for a
while.

Fails open: a replica without recorded failures gets requests. Only this process's requests count.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from core.contracts.replicas import ReplicaStatus
from data_plane.gateway import metrics

_log = structlog.get_logger()
_ADAPTERS_MAX: Final = 4096  # adapters whose failures are remembered at the same time
_NO_REPLICAS: Final = frozenset[str]()


@dataclass(slots=True)
class _Circuit:
    """Times are monotonic. ``opened`` counts how often the circuit has opened since it was last closed; 0 means
    closed.
    """

    replica: ReplicaStatus
    failures: int = 0
    opened: int = 0
    blocked_until: float = 0.0  # no request passes before this time
    healthy: bool = True  # by the replica's own health check since the circuit opened
    trial_until: float = 0.0  # until then a trial request is running, and no other passes


class CircuitBreakers:
    """The circuits of all replicas, and which replicas to avoid for an adapter. ``probe`` runs one health check."""

    def __init__(
        self,
        probe: Callable[[ReplicaStatus], Awaitable[bool]],
        *,
        failures: int,
        open_s: float,
        open_max_s: float,
        trial_s: float,
    ) -> None:
        self._probe = probe
        self._failures = failures
        self._open_s = open_s
        self._open_max_s = open_max_s
        self._trial_s = trial_s
        self._circuits: dict[str, _Circuit] = {}
        self._adapters = AdapterFailures(adapters_max=_ADAPTERS_MAX)

    def allows(self, replica: ReplicaStatus) -> bool:
        """Whether a request may be sent to a replica. An engine that has restarted begins with a closed circuit."""
        circuit = self._circuits.get(replica.id)
        if circuit is None or circuit.opened == 0:
            return True
        if circuit.replica.boot_id != replica.boot_id:
            del self._circuits[replica.id]
            return True
        now = time.monotonic()
        return circuit.healthy and now >= circuit.blocked_until and now >= circuit.trial_until

    def started(self, replica: ReplicaStatus) -> None:
        """Record that a request is being sent. With an open circuit it is the trial, and no other request passes
        now.
        """
        circuit = self._circuits.get(replica.id)
        if circuit is not None and circuit.opened:
            circuit.trial_until = time.monotonic() + self._trial_s

    def succeeded(self, replica: ReplicaStatus) -> None:
        """Record that the replica answered, and close its circuit."""
        circuit = self._circuits.pop(replica.id, None)
        if circuit is not None and circuit.opened:
            _log.info("circuit closed", replica=replica.id)
        metrics.OPEN_CIRCUITS.set(self._open())

    def failed(self, replica: ReplicaStatus) -> None:
        """Record that the replica could not be reached, broke off or stalled, and open its circuit after enough
        failures.
        """
        circuit = self._circuits.get(replica.id)
        if circuit is None or circuit.replica.boot_id != replica.boot_id:
            circuit = self._circuits[replica.id] = _Circuit(replica)
        circuit.failures += 1
        now = time.monotonic()
        if circuit.opened == 0 and circuit.failures < self._failures:
            return
        if circuit.opened and now < circuit.blocked_until:
            return  # the request began before the circuit opened: this failure is not new
        circuit.opened += 1
        pause_s = min(self._open_s * 2.0 ** (circuit.opened - 1), self._open_max_s)
        circuit.blocked_until, circuit.healthy, circuit.trial_until = now + pause_s, False, 0.0
        metrics.OPEN_CIRCUITS.set(self._open())
        _log.warning("circuit opened", replica=replica.id, failures=circuit.failures, pause_s=pause_s)

    def adapter_failed(self, replica: ReplicaStatus, adapter: str, *, backoff_s: float) -> None:
        """Record that a replica failed to load an adapter. For ``backoff_s``, other replicas are preferred for it."""
        now = time.monotonic()
        if self._adapters.record(adapter, replica.id, now_s=now, until_s=now + backoff_s):
            _log.warning(
                "adapter load failed; avoiding the replica", replica=replica.id, adapter=adapter, backoff_s=backoff_s
            )

    def failed_by(self, adapter: str) -> frozenset[str]:
        """The replicas that recently failed to load an adapter."""
        return self._adapters.failed_replicas(adapter, now_s=time.monotonic())

    async def run_forever(self) -> None:
        """Check the health of replicas whose pause is over, again and again. Never returns."""
        while True:
            await asyncio.sleep(self._open_s / 5)
            await self.probe()

    async def probe(self) -> None:
        """Check each replica whose pause is over and which has not passed a check since. Never raises."""
        now = time.monotonic()
        waiting = [each for each in self._circuits.values() if not each.healthy and now >= each.blocked_until]
        answers = await asyncio.gather(*(self._probe(circuit.replica) for circuit in waiting))
        for circuit, healthy in zip(waiting, answers, strict=True):
            circuit.healthy = healthy
            if not healthy:
                circuit.blocked_until = time.monotonic() + self._open_s

    def _open(self) -> int:
        return sum(circuit.opened > 0 for circuit in self._circuits.values())


class AdapterFailures:
    """Which replicas recently failed to load which adapter. Pure: times come in, in seconds of a monotonic clock. Of
    more than ``adapters_max`` adapters, the ones that failed longest ago are dropped: that costs an attempt, and no
    answer.
    """

    def __init__(self, *, adapters_max: int) -> None:
        self._adapters_max = adapters_max
        self._until: dict[str, dict[str, float]] = {}  # by adapter (last failure at the end), by replica

    def record(self, adapter: str, replica_id: str, *, now_s: float, until_s: float) -> bool:
        """Record a failure, which counts until ``until_s``. True if this replica had none for the adapter."""
        known = self._until.pop(adapter, {})
        fresh = {name: until for name, until in known.items() if until > now_s}
        self._until[adapter] = {**fresh, replica_id: until_s}
        if len(self._until) > self._adapters_max:
            del self._until[next(iter(self._until))]
        return replica_id not in fresh

    def failed_replicas(self, adapter: str, *, now_s: float) -> frozenset[str]:
        """The replicas to avoid for an adapter while another replica can serve it."""
        known = self._until.get(adapter)
        if known is None:
            return _NO_REPLICAS
        found = frozenset(name for name, until in known.items() if until > now_s)
        if not found:
            del self._until[adapter]
        return found
