"""One admitted request while it runs: its attempts on replicas, its checkpoints, and its settlement when it ends.

Admission decides whether a request may run, and the lifecycle ends the response. The object graph of a request has no
cycle, so that reference counting frees it at once: with 10,000 streams a garbage collection would stop all of them.
"""

import asyncio
import time

from core.contracts.replicas import ReplicaStatus
from core.contracts.request_log import RequestDetails
from core.contracts.usage import Outcome, UsageEvent
from core.errors import AppError
from data_plane.gateway import metrics
from data_plane.gateway.admission.admission import Admission
from data_plane.gateway.admission.fair_queue import QueueEntry
from data_plane.gateway.admission.moves import Placement
from data_plane.gateway.admission.pool_queue import WaitingRequest
from data_plane.gateway.api import service_class
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.token_counts import AdapterLoad, TokenCounts
from data_plane.gateway.quota.consumption import NOTHING_USED, saved_by_cache, used_by
from data_plane.gateway.quota.rate_limit_response import rate_headers
from data_plane.gateway.quota.reservation import Checkpoint, Settlement
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement import usage_event
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.state.authenticate import Caller
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.attempt import Attempt, AttemptResult, Dispatch
from data_plane.gateway.upstream.engine_client import ReplicaFailed
from data_plane.gateway.upstream.relay import Relay


class ActiveRequest:
    """An async context manager around the run of one admitted request. On exit it settles what the request used,
    however it ended.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        clock: RedisClock,
        admission: Admission,
        relay: Relay,
        settler: Settler,
        client: Client,
        request: InferenceRequest,
        placement: Placement,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._admission = admission
        self._relay = relay
        self._settler = settler
        self._client = client
        self._request = request
        self._placement = placement
        self._attempt: Attempt | None = None
        self._waiting: QueueEntry[WaitingRequest] | None = None  # again, after it gave way
        self._times_yielded = 0
        self._is_free = client.line is not None and client.line.is_paid  # the platform pays what is computed
        self._dispatched_at = 0.0  # monotonic
        self._dispatched_at_ms = 0
        self._result: AttemptResult | None = None
        self.headers = rate_headers(placement.verdict)
        if (served := request.target.adapter) is not None:
            self.headers.append((b"x-tenora-revision", served.revision.id.encode()))
        self.headers.append((service_class.HEADER, request.service_class.encode()))
        if request.route is not None:
            self.headers.append((b"x-model-used", request.target.shown_name.encode()))
            self.headers.append((b"x-route-reason", request.route.reason.encode()))

    async def __aenter__(self) -> "ActiveRequest":
        self._settler.attach(self._placement.hold, self)
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Settle once. If the settlement cannot be computed, its lease expires and its last checkpoint is billed."""
        event: UsageEvent | None = None
        phases = self._client.phases
        phases.ended_at = time.monotonic()
        try:
            settlement = self._settlement()
            event = settlement.event
            await self._settler.settle(settlement)
        finally:
            phases.settled_at = time.monotonic()
            self._settler.release(self._placement.hold)
            self._admission.ended(self._request, self._placement, event)

    async def run(self, body: bytes) -> AttemptResult:
        """Relay on the first replica, and on another one if the first produced nothing at all. A batch request that
        gives way waits for another placement and begins again.
        """
        self._relay.retries.deposit()
        while (result := await self._run_once(body)).outcome == "yielded":
            await self._wait_again(result)
        self._result = result
        return result

    async def _run_once(self, body: bytes) -> AttemptResult:
        deadline = asyncio.get_running_loop().time() + self._settings.request_s
        tried: frozenset[str] = frozenset()
        while True:
            tried |= {self._placement.replica.id}
            self._attempt = self._new_attempt(body, deadline)
            try:
                return await self._relay.run(self._attempt)
            except ReplicaFailed as error:
                metrics.REPLICA_FAILURES.inc()
                moved = None
                if len(tried) < self._settings.replica_attempts_max and self._may_retry(error, tried):
                    moved = await self._admission.moves.to_another(self._request, self._placement, tried)
                if moved is None:
                    raise
                self._placement = moved

    async def _wait_again(self, result: AttemptResult) -> None:
        """Record what was computed, at no price, and wait for another placement. Raises as ``Admission.admit``, and
        nothing is charged then.
        """
        hold, phases = self._placement.hold, self._client.phases
        self._times_yielded += 1
        event = self._event("yielded", result.counts, load=result.load, yielded=self._times_yielded)
        self._attempt = None  # so that a checkpoint, and a settlement, charge nothing of it
        try:
            self._waiting = await self._admission.moves.leave_replica(self._request, self._placement, self.checkpoint())
            hold.checkpoint_tokens = 0
        finally:
            await self._settler.settle(self._free(event, request_id=event.request_id))
        metrics.YIELDED_REQUESTS.inc()
        self._placement = await self._admission.moves.place_again(self._placement, self._waiting, self._client.watch)
        self._waiting, phases.admitted_at = None, time.monotonic()

    def was_replaced(self) -> None:
        """Another model answers instead. What was computed is charged, unless the plan says that the platform pays."""
        self._is_free |= self._request.limits.escalated_calls_paid_by == "platform"

    def _free(self, event: UsageEvent, *, request_id: str = "") -> Settlement:
        """A settlement that charges nothing: the platform pays what was computed. It is no request of its own."""
        hold = self._placement.hold
        return Settlement(
            request_id=request_id or hold.request_id,
            tenant_id=event.tenant_id,
            replica_id=event.replica_id,
            event=event,
            details=None,
        )

    def _new_attempt(self, body: bytes, deadline: float) -> Attempt:
        placement = self._placement
        self._dispatched_at, self._dispatched_at_ms = time.monotonic(), self._clock.now_ms()
        self._client.phases.attempts.append((placement.replica.id, self._dispatched_at))
        occupancy = placement.assignment.occupancy
        if self._request.is_batch:
            occupancy.begin_batch(self)
        dispatch = Dispatch(placement.replica, occupancy, body, self.headers, deadline)
        return self._relay.attempt(self._client, self._request, dispatch)

    def _may_retry(self, error: ReplicaFailed, tried: frozenset[str]) -> bool:
        """Whether another replica may be tried.

        One retry of a request is free where the adapter failed and another replica has not failed to load it: the
        adapter failure comes at once, before any engine has worked for the request. Failures are remembered, so each
        replica gets about one such request in ``adapter_failure_backoff_s``. Where no replica can load the adapter (the
        object store is away, for example), the retry budget applies.
        """
        if self._request.target.base.provider is not None:
            return False  # it has no other replica, and its client has retried
        if error.about_adapter and len(tried) == 1 and self._admission.moves.has_untried_replica(self._request, tried):
            return True
        allowed = self._relay.retries.withdraw()
        if not allowed:
            metrics.RETRIES_REFUSED.inc()
        return allowed

    @property
    def replica(self) -> ReplicaStatus:
        """The replica of the last attempt."""
        return self._placement.replica

    @property
    def caller(self) -> Caller:
        """The caller of the request."""
        return self._request.caller

    def tokens(self) -> int:
        """Tokens that the replica has counted so far."""
        return self._running_counts().total_tokens

    def cut_off(self, error: AppError) -> None:
        """End the request now and send its caller this error."""
        if self._attempt is not None:
            self._attempt.cut_off(error)
        elif self._waiting is not None:
            self._waiting.item.refuse(error)

    @property
    def may_give_way(self) -> bool:
        """Whether the request may run again: nothing of the answer has reached the caller."""
        if self._request.target.base.provider is not None:
            return False  # the provider would be paid twice
        return self._attempt is not None and not self._client.started

    def give_way(self) -> None:
        """End the attempt, so that the request waits again."""
        assert self._attempt is not None, "asked before"
        self._attempt.give_way()

    def checkpoint(self) -> Checkpoint:
        """What is billed if this process dies now. The line of a batch is sent again then, so its run costs nothing."""
        counts = self._running_counts()
        if self._client.line is not None:
            event = self._event("yielded", counts, load=None, yielded=self._times_yielded + 1)
            return Checkpoint(event=event, used=NOTHING_USED)
        event = self._event("gateway_gone", counts, load=None, estimated=True)
        return Checkpoint(event=event, used=used_by(event, self._request.caller.tenant))

    def _counts(self) -> TokenCounts:
        return TokenCounts() if self._attempt is None else self._attempt.counts()

    def _running_counts(self) -> TokenCounts:
        return TokenCounts() if self._attempt is None else self._attempt.running_counts()

    def _settlement(self) -> Settlement:
        """The engine's counts, or a settlement that bills nothing where no replica served the request."""
        result, hold, tenant = self._result, self._placement.hold, self._request.caller.tenant
        if result is None and (counts := self._counts()).sequences:  # the relay has a defect: what arrived is billed
            result = AttemptResult("replica_gone", counts)
        if result is None:
            return Settlement(request_id=hold.request_id, tenant_id=hold.tenant_id, replica_id=hold.replica_id)
        if self._is_free:
            self._times_yielded += 1
            return self._free(self._event("yielded", result.counts, load=result.load, yielded=self._times_yielded))
        event = self._event(result.outcome, result.counts, load=result.load)
        used = used_by(event, tenant)
        details = self._details(result, used.cost_nanos)
        self._client.phases.event, self._client.phases.details = event, details
        self._client.phases.price_nanos += used.cost_nanos
        usage_event.observe(event, details, expected_prompts=self._request.prompts, counted=result.counts)
        return Settlement(
            request_id=hold.request_id,
            tenant_id=hold.tenant_id,
            replica_id=hold.replica_id,
            used=used,
            cached_saves=saved_by_cache(event, tenant),
            event=event,
            details=details,
        )

    def _details(self, result: AttemptResult, price_nanos: int) -> RequestDetails:
        phases, attempt, replica = self._client.phases, self._attempt, self._placement.replica
        route = self._request.route
        phases.load_ms = None if result.load is None else result.load.load_ms
        return RequestDetails(
            model=phases.model,
            pool=replica.pool or None,
            pool_revision=replica.revision or None,
            wait_ms=phases.wait_ms,
            prefill_ms=phases.prefill_ms,
            itl_p95_ms=None if attempt is None else attempt.itl_p95_ms,
            finish_reason=None if attempt is None else attempt.finish_reason,
            code=None if result.error is None else result.error.code,
            price_nanos=price_nanos,
            model_used=None if route is None else self._request.target.shown_name,
            route_reason=None if route is None else route.reason,
            first_request_id=None if route is None else route.first_request_id,
        )

    def _event(
        self,
        outcome: Outcome,
        counts: TokenCounts,
        *,
        load: AdapterLoad | None,
        estimated: bool = False,
        yielded: int = 0,
    ) -> UsageEvent:
        request, now = self._request, time.monotonic()
        # KV pages are held, and billed, for at most the longest time that a request may run.
        on_replica_ms = min(round((now - self._dispatched_at) * 1000), self._settings.longest_ms)
        run = usage_event.RequestRun(
            replica=self._placement.replica,
            outcome=outcome,
            started_at_ms=self._dispatched_at_ms,
            settled_at_ms=self._clock.now_ms(),
            on_replica_ms=on_replica_ms,
            generating_ms=min(self._generating_ms(now), on_replica_ms),
            first_token_ms=self._first_token_ms(),
            duration_ms=round((now - request.read_at) * 1000),
            load=load,
            estimated=estimated,
            yielded=yielded,
        )
        return usage_event.usage_event(request, run, counts)

    def _generating_ms(self, now: float) -> int:
        """Time since the first token, or since the dispatch where the gateway has not seen that token: a whole answer
        arrives with its last one.
        """
        attempt, since = self._attempt, self._dispatched_at
        if attempt is not None and attempt.first_byte_at is not None and self._request.call.stream:
            since = attempt.first_byte_at
        return round((now - since) * 1000)

    def _first_token_ms(self) -> int | None:
        """When the caller got the first token of a stream; None for a whole answer, which shows nothing of it."""
        first_at = self._client.phases.first_text_at
        return None if first_at is None else round((first_at - self._request.read_at) * 1000)
