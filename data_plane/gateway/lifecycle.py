"""The life of a request, from key to bill: the one file that knows the order of the steps.

Each step is a file of its own. Whatever ends a request, what it held is settled exactly once before its end is told.
"""

import asyncio
import contextlib
import hashlib
import hmac
import time
from dataclasses import dataclass

from core import clock
from core.contracts import BaseModelRoute, Limits, ReplicaStatus
from core.errors import InvalidRequest, Unavailable
from data_plane.gateway import meter, metrics
from data_plane.gateway.admission import Admission, Demand, Place
from data_plane.gateway.authenticate import Caller, authenticate
from data_plane.gateway.beat import Beat
from data_plane.gateway.body import BodyLimits, Call, Kind, check_vocabulary, engine_body, parse_call
from data_plane.gateway.catalog import Target, resolve
from data_plane.gateway.client import CLIENT_GONE, Client
from data_plane.gateway.errors import error_event
from data_plane.gateway.heat import AdapterHeat
from data_plane.gateway.limits import rate_headers
from data_plane.gateway.relay import Attempt, Relay, Relayed
from data_plane.gateway.reservation import Settlement
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement import Settler
from data_plane.gateway.snapshot import Snapshot, Tables
from data_plane.gateway.stickiness import session_key
from data_plane.gateway.tokenise import PromptCounters
from data_plane.gateway.upstream import ReplicaFailed


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been read, resolved and counted, and holds nothing yet."""

    request_id: str
    caller: Caller
    call: Call
    target: Target
    prompt_tokens: int
    read_at: float  # monotonic: when its last byte had come


class Lifecycle:
    """Serves requests over what app.py built."""

    def __init__(
        self,
        settings: GatewaySettings,
        snapshot: Snapshot,
        beat: Beat,
        counters: PromptCounters,
        admission: Admission,
        settler: Settler,
        relay: Relay,
        heat: AdapterHeat,
    ) -> None:
        self._settings = settings
        self._heat = heat
        self._snapshot = snapshot
        self._beat = beat
        self._counters = counters
        self._admission = admission
        self._settler = settler
        self._relay = relay
        self._pepper = settings.key_pepper.get_secret_value().encode()
        self._salt_secret = settings.salt_secret.get_secret_value().encode()
        self._body_limits = BodyLimits(settings.json_depth_max, settings.messages_max)

    def identify(self, client: Client) -> tuple[Caller, Tables]:
        """Who calls, and what is published now. Decided before anything of the body is read."""
        client.check_headers(count_max=self._settings.headers_max, bytes_max=self._settings.headers_max_bytes)
        tables = self._snapshot.tables
        if tables is None:
            raise Unavailable("The gateway has not loaded its snapshot yet.", code="not_ready", retry_after_s=1)
        return authenticate(client.request_headers, tables, self._pepper), tables

    async def prepare(self, kind: Kind, client: Client, request_id: str) -> Prepared:
        """Authenticate, read, check, resolve and count. Takes nothing from any limit."""
        caller, _ = self.identify(client)
        raw = await client.read_json_bytes(bytes_max=self._settings.body_max_bytes, timeout_s=self._settings.body_s)
        read_at = time.monotonic()
        call = parse_call(kind, raw, self._body_limits)
        session = session_key(client.request_headers, call)
        target = resolve(self._current(), caller.tenant.tenant_id, call.model, draw=session or request_id)
        check_vocabulary(call, target.base.vocab_size)
        prompt_tokens = await self._counters.count(target.base, call, len(raw))
        return Prepared(request_id, caller, call, target, prompt_tokens, read_at)

    def _current(self) -> Tables:
        """What is published now, by which a request is decided: not what was when its body began to come."""
        self._beat.check()
        assert self._snapshot.tables is not None, "a caller was found in it"
        return self._snapshot.tables

    async def complete(self, kind: Kind, client: Client, request_id: str) -> None:
        """Serve one completion. Raises AppError for what could be told before the response began."""
        arrived = time.monotonic()
        prepared = await self.prepare(kind, client, request_id)
        call, target, tenant = prepared.call, prepared.target, prepared.caller.tenant
        max_tokens = output_ceiling(prepared.prompt_tokens, call.max_tokens, tenant.limits, target.base)
        demand = Demand(
            request_id=request_id,
            tenant_id=tenant.tenant_id,
            limits=tenant.limits,
            base_model=target.base.id,
            engine_name=target.engine_name,
            sequences=call.n,
            sequence_tokens=prepared.prompt_tokens + max_tokens,
            rank=target.rank,
        )
        place = await self._admission.admit(demand)
        service = _Service(self._settings, self._admission, self._relay, client, prepared, demand, place, arrived)
        try:
            relayed = await service.run(engine_body(
                call, model=target.engine_name, max_tokens=max_tokens, cache_salt=self._salt(tenant.tenant_id)
            ))  # fmt: skip
        finally:
            await self._settler.settle(service.settlement())
        if target.adapter is not None:
            self._heat.note(target.base.id, service.replica.rank_max, target.engine_name)
        metrics.request_seconds.observe(time.monotonic() - arrived)
        await self._end(client, call, relayed, service)

    async def _end(self, client: Client, call: Call, relayed: Relayed, service: "_Service") -> None:
        """Tell the caller how it ended, now that it has settled."""
        if relayed.cancelled:
            raise asyncio.CancelledError
        if relayed.outcome == "client_gone":
            client.status = client.status or CLIENT_GONE
            return
        if relayed.error is not None and not client.started:
            raise relayed.error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.last_write_s):
                if call.stream:
                    await client.write(
                        relayed.ending if relayed.error is None else error_event(relayed.error), more=False
                    )
                else:
                    await client.respond(200, relayed.ending, service.headers)

    def _salt(self, tenant_id: str) -> str:
        """One tenant's prefix cache is closed to every other: same tenant, same salt, guessable by nobody."""
        return hmac.new(self._salt_secret, tenant_id.encode(), hashlib.sha256).hexdigest()


class _Service:
    """One admitted request: its attempts on replicas, and the settlement of what they used."""

    def __init__(
        self,
        settings: GatewaySettings,
        admission: Admission,
        relay: Relay,
        client: Client,
        prepared: Prepared,
        demand: Demand,
        place: Place,
        arrived: float,
    ) -> None:
        self._settings = settings
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
        self.headers = rate_headers(place.verdict, demand.limits)
        if (served := prepared.target.adapter) is not None:
            self.headers.append((b"x-tenora-revision", served.revision.id.encode()))

    async def run(self, body: bytes) -> Relayed:
        """Relay on the first replica, and on another if that one gives nothing at all."""
        deadline = asyncio.get_running_loop().time() + self._settings.request_s
        tried: frozenset[str] = frozenset()
        while True:
            tried |= {self._place.replica.id}
            self._dispatched, self._dispatched_at_ms = time.monotonic(), clock.now_ms()
            try:
                self._relayed = await self._relay.run(self._client, self._attempt(body, deadline))
            except ReplicaFailed:
                metrics.replica_failures.inc()
                moved = None
                if len(tried) < self._settings.replica_attempts_max:
                    moved = await self._admission.move(self._demand, self._place, tried)
                if moved is None:
                    raise
                self._place = moved
            else:
                return self._relayed

    @property
    def replica(self) -> ReplicaStatus:
        """Where the last attempt ran."""
        return self._place.replica

    def settlement(self) -> Settlement:
        """What to settle: the engine's counts, or nothing where no replica served the request."""
        relayed, hold = self._relayed, self._place.hold
        event = None
        if relayed is not None:
            counts, ended = relayed.counts, time.monotonic()
            run = meter.Run(
                request_id=self._demand.request_id,
                replica_id=self._place.replica.id,
                block_tokens=self._place.replica.block_tokens,
                outcome=relayed.outcome,
                started_at_ms=self._dispatched_at_ms,
                settled_at_ms=clock.now_ms(),
                on_replica_ms=round((ended - self._dispatched) * 1000),
                first_token_ms=self._first_token_ms,
                duration_ms=round((ended - self._prepared.read_at) * 1000),
                load=relayed.load,
            )
            event = meter.usage_event(self._prepared.caller, self._prepared.target, run, counts)
            meter.observe(event, expected_prompt_tokens=self._prepared.prompt_tokens, counted=counts)
        return Settlement(
            request_id=hold.request_id,
            tenant_id=hold.tenant_id,
            replica_id=hold.replica_id,
            used_tokens=0 if event is None else event.input_tokens + event.output_tokens,
            event=event,
        )

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
        )

    def _first_byte(self) -> None:
        now = time.monotonic()
        metrics.first_byte_seconds.observe(now - self._arrived)
        if self._prepared.call.stream:  # a whole answer's first byte says nothing of its first token
            self._first_token_ms = round((now - self._prepared.read_at) * 1000)


def output_ceiling(prompt_tokens: int, asked: int | None, limits: Limits, base: BaseModelRoute) -> int:
    """``max_tokens`` for the engine. Absent means all that plan and context allow; more is refused, since
    an answer cut short without a word is worse. Raises InvalidRequest.
    """
    context = min(limits.context_tokens, base.context_tokens)
    room = context - prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        wanted = f"{prompt_tokens} in the prompt" + (f" and {asked} for the completion" if asked else "")
        raise InvalidRequest(
            f"The context is limited to {context} tokens, and this request asks for {wanted}.",
            code="context_length_exceeded",
            param="max_tokens" if room >= 1 else "messages",
        )
    if asked is not None and asked > limits.output_tokens:
        raise InvalidRequest(
            f"`max_tokens` is {asked}; the plan allows {limits.output_tokens}.",
            code="invalid_value",
            param="max_tokens",
        )
    return asked if asked is not None else min(room, limits.output_tokens)
