"""One admitted request: its attempts on replicas, the checkpoints of what it uses, and the settlement of it.

Who may be admitted, and what the caller is told in the end, is the lifecycle's.
"""

import asyncio
import time

import msgspec

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import Outcome, UsageEvent
from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.admission.admission import Admission, Place
from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.model_catalog import Target
from data_plane.gateway.api.openai_request import Call
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.quota.consumption import saved_by_cache, used_by
from data_plane.gateway.quota.rate_limit_response import rate_headers
from data_plane.gateway.quota.reservation import Checkpoint, Settlement
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement import usage_event
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.attempt import Attempt, Exchange, Relayed
from data_plane.gateway.upstream.engine_client import ReplicaFailed
from data_plane.gateway.upstream.relay import Relay


class Prepared(msgspec.Struct, frozen=True):
    """A request that has been read, resolved and counted, and holds nothing yet."""

    request_id: str
    caller: Caller
    call: Call
    target: Target
    prompt_tokens: int
    read_at: float  # monotonic: when its last byte had come
    affinity: str = ""  # its session's or prefix's name


class Serving:
    """One admitted request: its attempts on replicas, and the settlement of what they used."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one request, which only the lifecycle joins
        self,
        settings: GatewaySettings,
        clock: RedisClock,
        admission: Admission,
        relay: Relay,
        client: Client,
        prepared: Prepared,
        demand: Demand,
        place: Place,
        arrived: float,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._admission = admission
        self._relay = relay
        self._client = client
        self._prepared = prepared
        self._demand = demand
        self._place = place
        self._arrived = arrived
        self._relayed: Relayed | None = None
        self._dispatched = 0.0
        self._dispatched_at_ms = 0
        self._first_token_ms: int | None = None
        self._exchange: Exchange | None = None
        place.hold.running = self
        self.headers = rate_headers(place.verdict)
        if (served := prepared.target.adapter) is not None:
            self.headers.append((b"x-tenora-revision", served.revision.id.encode()))

    async def run(self, body: bytes) -> Relayed:
        """Relay on the first replica, and on another if that one gives nothing at all."""
        deadline = asyncio.get_running_loop().time() + self._settings.request_s
        tried: frozenset[str] = frozenset()
        self._relay.retries.deposit()
        while True:
            tried |= {self._place.replica.id}
            self._dispatched, self._dispatched_at_ms = time.monotonic(), self._clock.now_ms()
            try:
                self._relayed = await self._relay.run(self._client, self._attempt(body, deadline))
            except ReplicaFailed as error:
                metrics.REPLICA_FAILURES.inc()
                moved = None
                if len(tried) < self._settings.replica_attempts_max and self._may_retry(error, tried):
                    moved = await self._admission.move(self._demand, self._place, tried)
                if moved is None:
                    raise
                self._place = moved
            else:
                return self._relayed

    def _may_retry(self, error: ReplicaFailed, tried: frozenset[str]) -> bool:
        """Whether another replica may be asked. That is free, once a request, where an adapter is why and a replica is
        left that has not failed it: who calls for it at once fails at once, and no engine has worked for them. Failures
        are remembered, so each replica is asked so about once in ``adapter_failure_backoff_s``; where none can bring it
        in (its store is away, say), the budget holds as ever.
        """
        if error.about_adapter and len(tried) == 1 and self._admission.knows_another(self._demand, tried):
            return True
        allowed = self._relay.retries.withdraw()
        if not allowed:
            metrics.RETRIES_REFUSED.inc()
        return allowed

    @property
    def place(self) -> Place:
        """Where the last attempt ran, with what it holds there."""
        return self._place

    @property
    def replica(self) -> ReplicaStatus:
        """Where the last attempt ran."""
        return self._place.replica

    def tokens(self) -> int:
        """Tokens that the replica has counted so far."""
        return self._counts().total_tokens

    @property
    def caller(self) -> Caller:
        """Whose request it is."""
        return self._prepared.caller

    def cut_off(self, error: AppError) -> None:
        """End it where it runs, and tell its caller why."""
        if self._exchange is not None:
            self._exchange.cut_off(error)

    def _counts(self) -> TokenCounts:
        return TokenCounts() if self._exchange is None else self._exchange.counts()

    def checkpoint(self) -> Checkpoint:
        """What is charged if this process dies now."""
        event = self._event("gateway_gone", self._counts(), load=None, estimated=True)
        return Checkpoint(event=event, used=used_by(event, self._prepared.caller.tenant))

    def settlement(self) -> Settlement:
        """What to settle: the engine's counts, or nothing where no replica served the request."""
        relayed, hold = self._relayed, self._place.hold
        if relayed is None and (counts := self._counts()).outputs:  # relaying ended with a defect: what came is charged
            relayed = Relayed("replica_gone", counts)
        if relayed is None:
            return Settlement(request_id=hold.request_id, tenant_id=hold.tenant_id, replica_id=hold.replica_id)
        event = self._event(relayed.outcome, relayed.counts, load=relayed.load)
        usage_event.observe(event, expected_prompt_tokens=self._prepared.prompt_tokens, counted=relayed.counts)
        return Settlement(
            request_id=hold.request_id,
            tenant_id=hold.tenant_id,
            replica_id=hold.replica_id,
            used=used_by(event, self._prepared.caller.tenant),
            cached_saves=saved_by_cache(self._prepared.caller.tenant),
            event=event,
        )

    def close(self) -> None:
        """Let go of those that know this one in turn, or every request is left to the garbage collector."""
        self._place.hold.running = self._exchange = None

    def _event(
        self, outcome: Outcome, counts: TokenCounts, *, load: AdapterLoad | None, estimated: bool = False
    ) -> UsageEvent:
        now = time.monotonic()
        run = usage_event.Run(
            request_id=self._demand.request_id,
            replica_id=self._place.replica.id,
            block_tokens=self._place.replica.block_tokens,
            outcome=outcome,
            started_at_ms=self._dispatched_at_ms,
            settled_at_ms=self._clock.now_ms(),
            # A request's pages are held, and charged, for no longer than it may run.
            on_replica_ms=min(round((now - self._dispatched) * 1000), self._settings.longest_ms),
            first_token_ms=self._first_token_ms,
            duration_ms=round((now - self._prepared.read_at) * 1000),
            load=load,
            estimated=estimated,
        )
        return usage_event.usage_event(self._prepared.caller, self._prepared.target, run, counts)

    def _opened(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _attempt(self, body: bytes, deadline: float) -> Attempt:
        prepared = self._prepared
        return Attempt(
            call=prepared.call,
            request_id=prepared.request_id,
            tenant_id=prepared.caller.tenant.tenant_id,
            engine_name=prepared.target.engine_name,
            adapter=None if prepared.target.adapter is None else prepared.target.engine_name,
            shown_name=prepared.target.shown_name,
            body=body,
            replica=self._place.replica,
            headers=self.headers,
            deadline=deadline,
            on_first_byte=self._first_byte,
            on_open=self._opened,
        )

    def _first_byte(self) -> None:
        now = time.monotonic()
        metrics.FIRST_BYTE_SECONDS.observe(now - self._arrived)
        self._place.seat.stay.prefilled()
        if self._prepared.call.stream:  # a whole answer's first byte says nothing of its first token
            self._first_token_ms = round((now - self._prepared.read_at) * 1000)
