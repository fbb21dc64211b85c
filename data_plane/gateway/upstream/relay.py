"""Relays one attempt of a request on one replica and reports to the circuit breakers how the replica did; also the
budget that bounds retries. Retry decisions, settlement and billing belong to request/active_request.py.
"""

from collections.abc import Callable

import msgspec

from core.contracts.replicas import ReplicaStatus
from core.errors import AppError
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.circuit_breaker import CircuitBreakers
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.attempt import Attempt, AttemptResult, Dispatch
from data_plane.gateway.upstream.engine_client import EngineClient, LocalShortage, ReplicaFailed
from data_plane.gateway.upstream.streaming_attempt import StreamingAttempt
from data_plane.gateway.upstream.unary_attempt import EmbeddingAttempt, UnaryAttempt
from data_plane.gateway.upstream.unary_progress import UnaryProgress

AttemptMaker = Callable[[Client, InferenceRequest, Dispatch], Attempt]
"""Makes an attempt, which ``Relay.run`` runs."""


class RetryBudget:
    """A bucket of retries, so that retries stay a share of all requests and cannot become a storm. Each request adds
    ``percent`` of one retry, up to ``burst``. The bucket starts full.
    """

    def __init__(self, *, percent: int, burst: int) -> None:
        self._percent = percent
        self._max = burst * 100
        self._hundredths = self._max

    def deposit(self) -> None:
        """Count one request."""
        self._hundredths = min(self._max, self._hundredths + self._percent)

    def withdraw(self) -> bool:
        """Take one retry from the budget; False where none is left."""
        if self._hundredths < 100:
            return False
        self._hundredths -= 100
        return True


class Relay:
    """Creates and runs attempts."""

    def __init__(
        self,
        engines: EngineClient,
        breakers: CircuitBreakers,
        replicas: Replicas,
        progress: UnaryProgress,
        retries: RetryBudget,
        limits: GatewaySettings,
        at_provider: AttemptMaker,
    ) -> None:
        """``at_provider`` makes the attempts at outside providers."""
        self.retries = retries
        self._at_provider = at_provider
        self._engines = engines
        self._breakers = breakers
        self._replicas = replicas
        self._progress = progress
        self._limits = limits

    def attempt(self, client: Client, request: InferenceRequest, dispatch: Dispatch) -> Attempt:
        """A new attempt, which ``run`` starts."""
        if request.target.base.provider is not None:
            return self._at_provider(client, request, dispatch)
        if request.call.stream:
            return StreamingAttempt(self._engines, self._limits, client, request, dispatch)
        kind = EmbeddingAttempt if request.call.kind == "embedding" else UnaryAttempt
        return kind(self._engines, self._limits, client, request, dispatch, self._replicas, self._progress)

    async def run(self, attempt: Attempt) -> AttemptResult:
        """Relay one attempt to its end.

        Raises ReplicaFailed, AdapterLoadPending, LocalShortage or InvalidRequest, and only before the first byte.
        """
        replica = attempt.replica
        self._breakers.started(replica)
        try:
            result = await attempt.run(self._breakers)
        except LocalShortage:
            raise
        except AppError as error:
            about_adapter = isinstance(error, ReplicaFailed) and error.about_adapter
            if about_adapter and (adapter := attempt.request.adapter):
                backoff_s = self._limits.adapter_failure_backoff_s
                self._breakers.adapter_failed(replica, adapter, backoff_s=backoff_s)
            if not attempt.stalled:
                self._report(replica, failed=isinstance(error, ReplicaFailed) and not about_adapter)
            raise
        caller_waited = result.outcome not in ("client_gone", "yielded") and attempt.cut is None
        if not attempt.stalled and (caller_waited or result.counts.sequences):
            self._report(replica, failed=caller_waited and result.outcome == "replica_gone")
        return result if attempt.load is None else msgspec.structs.replace(result, load=attempt.load)

    def _report(self, replica: ReplicaStatus, *, failed: bool) -> None:
        if failed:
            self._breakers.failed(replica)
        else:
            self._breakers.succeeded(replica)
