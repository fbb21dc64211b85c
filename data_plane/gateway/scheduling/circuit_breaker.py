"""Circuit breakers, one a replica: after failures in a row it is left alone, asked for its health, then tried with one
request. What a failure is, its caller decides. One that is about an adapter breaks nothing: the replica is well, and
is only spared that adapter for a while.

Fails open: a replica that nobody has reported on is used. Only this process's requests are counted.
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
_ADAPTERS_MAX: Final = 4096  # that failed somewhere, remembered at once
_NOBODY: Final = frozenset[str]()


@dataclass(slots=True)
class _Circuit:
    """Times are monotonic. ``opened`` counts how often in a row it has opened; 0 is closed."""

    replica: ReplicaStatus
    failures: int = 0
    opened: int = 0
    blocked_until: float = 0.0  # nobody passes before
    healthy: bool = True  # by its own word, since it opened
    trial_until: float = 0.0  # one request is on its way


class Breakers:
    """Which replicas to leave alone. ``probe`` asks one for its health."""

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
        """Whether a request may be sent there. An engine that has started anew begins without a past."""
        circuit = self._circuits.get(replica.id)
        if circuit is None or circuit.opened == 0:
            return True
        if circuit.replica.boot_id != replica.boot_id:
            del self._circuits[replica.id]
            return True
        now = time.monotonic()
        return circuit.healthy and now >= circuit.blocked_until and now >= circuit.trial_until

    def began(self, replica: ReplicaStatus) -> None:
        """A request is sent there: of a replica on trial nobody else tries it now."""
        circuit = self._circuits.get(replica.id)
        if circuit is not None and circuit.opened:
            circuit.trial_until = time.monotonic() + self._trial_s

    def succeeded(self, replica: ReplicaStatus) -> None:
        """It answered."""
        circuit = self._circuits.pop(replica.id, None)
        if circuit is not None and circuit.opened:
            _log.info("replica is used again", replica=replica.id)
        metrics.OPEN_CIRCUITS.set(self._open())

    def failed(self, replica: ReplicaStatus) -> None:
        """It could not be reached, broke off, or stood still."""
        circuit = self._circuits.get(replica.id)
        if circuit is None or circuit.replica.boot_id != replica.boot_id:
            circuit = self._circuits[replica.id] = _Circuit(replica)
        circuit.failures += 1
        now = time.monotonic()
        if circuit.opened == 0 and circuit.failures < self._failures:
            return
        if circuit.opened and now < circuit.blocked_until:
            return  # begun before it opened: known already
        circuit.opened += 1
        pause_s = min(self._open_s * 2.0 ** (circuit.opened - 1), self._open_max_s)
        circuit.blocked_until, circuit.healthy, circuit.trial_until = now + pause_s, False, 0.0
        metrics.OPEN_CIRCUITS.set(self._open())
        _log.warning("replica is left alone", replica=replica.id, failures=circuit.failures, pause_s=pause_s)

    def adapter_failed(self, replica: ReplicaStatus, adapter: str, *, spared_s: float) -> None:
        """It could not bring an adapter in: for so long others are asked for that one."""
        now = time.monotonic()
        if self._adapters.note(adapter, replica.id, now_s=now, until_s=now + spared_s):
            _log.warning("replica is spared an adapter", replica=replica.id, adapter=adapter, spared_s=spared_s)

    def failed_by(self, adapter: str) -> frozenset[str]:
        """Replicas that could not bring an adapter in lately."""
        return self._adapters.of(adapter, now_s=time.monotonic())

    async def follow(self) -> None:
        """Ask replicas for their health once their pause is over, for ever."""
        while True:
            await asyncio.sleep(self._open_s / 5)
            await self.probe()

    async def probe(self) -> None:
        """Ask those whose pause is over and who have not said that they are well. Never raises."""
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
    """Replicas by the adapters that they failed. Of more than ``adapters_max`` adapters, those that failed longest ago
    are forgotten.
    """

    def __init__(self, *, adapters_max: int) -> None:
        self._adapters_max = adapters_max
        self._until: dict[str, dict[str, float]] = {}  # by adapter, the one that failed last at the end, and replica

    def note(self, adapter: str, replica_id: str, *, now_s: float, until_s: float) -> bool:
        """A replica could not bring an adapter in. Whether that is news."""
        known = self._until.pop(adapter, {})
        fresh = {name: until for name, until in known.items() if until > now_s}
        self._until[adapter] = {**fresh, replica_id: until_s}
        if len(self._until) > self._adapters_max:
            del self._until[next(iter(self._until))]
        return replica_id not in fresh

    def of(self, adapter: str, *, now_s: float) -> frozenset[str]:
        """The replicas that are not to be asked for an adapter while any other can be."""
        known = self._until.get(adapter)
        if known is None:
            return _NOBODY
        found = frozenset(name for name, until in known.items() if until > now_s)
        if not found:
            del self._until[adapter]
        return found
