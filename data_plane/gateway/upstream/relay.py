"""Relays an attempt of a request on one replica, and reports how the replica did. Retrying, settling and billing are
the lifecycle's.
"""

import msgspec

from core.errors import AppError
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.scheduling.engine_liveness import EngineLiveness
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import Attempt, Exchange, Relayed
from data_plane.gateway.upstream.engine_client import EngineClient, LocalShortage, ReplicaFailed
from data_plane.gateway.upstream.streaming_attempt import StreamExchange
from data_plane.gateway.upstream.unary_attempt import WholeExchange


class RetryBudget:
    """A bucket of retries, which every request fills by ``percent`` of one, up to ``burst``. It begins full."""

    def __init__(self, *, percent: int, burst: int) -> None:
        self._percent = percent
        self._max = burst * 100
        self._hundredths = self._max

    def deposit(self) -> None:
        """A request has come."""
        self._hundredths = min(self._max, self._hundredths + self._percent)

    def withdraw(self) -> bool:
        """Whether one retry may be made; it is counted then."""
        if self._hundredths < 100:
            return False
        self._hundredths -= 100
        return True


class Relay:
    """Relays attempts. Raises ReplicaFailed, AdapterLoading, LocalShortage or InvalidRequest, and only before the first
    byte.
    """

    def __init__(
        self,
        upstream: EngineClient,
        breakers: CircuitBreakers,
        signs: EngineLiveness,
        retries: RetryBudget,
        limits: GatewaySettings,
    ) -> None:
        self.retries = retries
        self._upstream = upstream
        self._breakers = breakers
        self._signs = signs
        self._limits = limits

    async def run(self, client: Client, attempt: Attempt) -> Relayed:
        """Relay one attempt to its end."""
        relaying: Exchange
        if attempt.call.stream:
            relaying = StreamExchange(self._upstream, self._limits, client, attempt)
        else:
            relaying = WholeExchange(self._upstream, self._limits, client, attempt, self._signs)
        attempt.on_open(relaying)
        self._breakers.started(attempt.replica)
        try:
            relayed = await relaying.run(lambda: self._breakers.failed(attempt.replica))
        except LocalShortage:
            raise
        except AppError as error:
            about_adapter = isinstance(error, ReplicaFailed) and error.about_adapter
            if about_adapter and attempt.adapter is not None:
                backoff_s = self._limits.adapter_failure_backoff_s
                self._breakers.adapter_failed(attempt.replica, attempt.adapter, backoff_s=backoff_s)
            if not relaying.stood_still:
                self._report(attempt, failed=isinstance(error, ReplicaFailed) and not about_adapter)
            raise
        waited_for = relayed.outcome != "client_gone" and relaying.cut is None
        if not relaying.stood_still and (waited_for or relayed.counts.outputs):
            self._report(attempt, failed=waited_for and relayed.outcome == "replica_gone")
        return relayed if relaying.load is None else msgspec.structs.replace(relayed, load=relaying.load)

    def _report(self, attempt: Attempt, *, failed: bool) -> None:
        if failed:
            self._breakers.failed(attempt.replica)
        else:
            self._breakers.succeeded(attempt.replica)
