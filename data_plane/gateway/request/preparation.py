"""The first step of a request: authenticate the caller, read the body, resolve the model, count the prompt. The result
is an InferenceRequest that holds no resource yet.

Every refusal that needs no quota happens here. Fails closed: without a current snapshot no request is prepared.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from core.contracts.grants import Limits
from core.contracts.routes import BaseModelRoute
from core.errors import AppError, InvalidRequest, TooManyRequests, Unavailable
from data_plane.gateway.api.chat_template import require_tools_rendered
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.model_catalog import resolve
from data_plane.gateway.api.openai_request import BodyLimits, Call, Kind, Parse, check_vocabulary, parse_call
from data_plane.gateway.api.prompt_counter import PromptCounters
from data_plane.gateway.api.schema_compiler import SchemaCompiler
from data_plane.gateway.api.tenant_thread_pool import TenantThreadPool
from data_plane.gateway.errors import ContextLengthExceeded
from data_plane.gateway.quota.unmetered_rate_limit import UnmeteredRateLimiter
from data_plane.gateway.scheduling.affinity import affinity_key, session_key
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.state.authenticate import Caller, authenticate
from data_plane.gateway.state.heartbeat import Heartbeat
from data_plane.gateway.state.snapshot import Snapshot, Tables


class Preparation:
    """Prepares requests against the published snapshot."""

    def __init__(
        self,
        settings: GatewaySettings,
        snapshot: Snapshot,
        heartbeat: Heartbeat,
        threads: TenantThreadPool,
        counters: PromptCounters,
        schemas: SchemaCompiler,
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._heartbeat = heartbeat
        self._threads = threads
        self._counters = counters
        self._schemas = schemas
        self.unmetered = UnmeteredRateLimiter(settings.tenant_unmetered_requests_per_s)
        self._peppers = settings.peppers
        self._preparing: Counter[str] = Counter()
        self._body_limits = BodyLimits(settings.json_depth_max, settings.messages_max, settings.tools_max_bytes)

    def identify(self, client: Client) -> tuple[Caller, Tables]:
        """The caller and the current snapshot, for responses that no quota meters. Raises AppError."""
        caller, tables = self._identify(client)
        self.unmetered.charge(caller.tenant.tenant_id)
        return caller, tables

    def _identify(self, client: Client) -> tuple[Caller, Tables]:
        """Authenticate from the headers alone, before the body is read."""
        client.check_headers(count_max=self._settings.headers_max, bytes_max=self._settings.headers_max_bytes)
        tables = self._snapshot.tables
        if tables is None:
            raise Unavailable("The gateway has not loaded its snapshot yet.", code="not_ready", retry_after_s=1)
        caller = authenticate(client.request_headers, tables, *self._peppers)
        client.phases.caller = caller
        self.unmetered.check(caller.tenant.tenant_id)
        return caller, tables

    async def prepare(self, kind: Kind, client: Client, request_id: str, parse: Parse = parse_call) -> InferenceRequest:
        """Authenticate, read, validate, resolve, compile and count. Raises AppError or ClientGone."""
        arrived_at = time.monotonic()
        caller, _ = self._identify(client)
        try:
            with self._preparing_slot(caller.tenant.tenant_id):
                request = await self._prepare(caller, kind, client, request_id, parse, arrived_at)
        except AppError as error:
            if error.status < 500:
                self.unmetered.charge(caller.tenant.tenant_id)
            raise
        if kind == "tokenize":
            self.unmetered.charge(caller.tenant.tenant_id)
        return request

    async def _prepare(
        self, caller: Caller, kind: Kind, client: Client, request_id: str, parse: Parse, arrived_at: float
    ) -> InferenceRequest:
        tenant_id = caller.tenant.tenant_id
        raw = await client.read_json_bytes(bytes_max=self._settings.body_max_bytes, timeout_s=self._settings.body_s)
        read_at = time.monotonic()
        await _yield_to_streams()
        if len(raw) <= self._settings.parse_inline_max_bytes:
            call = parse(kind, raw, self._body_limits)
        else:
            call = await self._threads.run(tenant_id, parse, kind, raw, self._body_limits)
        client.phases.asked_for(call.model)
        session = session_key(client.request_headers, call)
        target = resolve(self._current_tables(), tenant_id, call.model, draw=session or request_id)
        check_vocabulary(call, target.base.vocab_size)
        require_tools_rendered(target.base, call)
        if kind != "tokenize":
            await self._schemas.check(tenant_id, target.base, call)
        await _yield_to_streams()
        counted = await self._counters.count(tenant_id, target.base, call, len(raw))
        await _yield_to_streams()
        limits = caller.limits
        flex = call.service_tier == "flex" and caller.tenant.flex_prices is not None
        max_tokens = output_ceiling(max(counted), call.max_tokens, limits, target.base)
        client.phases.request = request = InferenceRequest(
            id=request_id,
            caller=caller,
            limits=limits,
            call=call,
            target=target,
            engine_name=target.engine_name,
            prompts=tuple([prompt_tokens for prompt_tokens in counted for _ in range(call.n)]),
            max_tokens=max_tokens,
            min_tokens=self._min_tokens(call, max_tokens),
            affinity=affinity_key(tenant_id, session, call),
            arrived_at=arrived_at,
            read_at=read_at,
            service_tier="flex" if flex else "default",
        )
        return request

    def _min_tokens(self, call: Call, max_tokens: int) -> int:
        """The smallest grant to accept. A requested ``max_tokens`` is granted in full or refused, since an answer that
        is cut short without notice is worse; a request without one accepts what quotas leave.
        """
        return max_tokens if call.max_tokens is not None else min(max_tokens, self._settings.min_completion_tokens)

    @contextmanager
    def _preparing_slot(self, tenant_id: str) -> Iterator[None]:
        """One of a tenant's slots for requests whose quotas have not been checked yet."""
        most = self._settings.tenant_preparing_max
        if self._preparing[tenant_id] >= most:
            raise TooManyRequests(
                f"The gateway prepares at most {most} requests of one tenant at a time. Retry in 1 s.",
                code="too_many_unread_requests",
                retry_after_s=1,
            )
        self._preparing[tenant_id] += 1
        try:
            yield
        finally:
            self._preparing[tenant_id] -= 1
            if not self._preparing[tenant_id]:
                del self._preparing[tenant_id]

    def _current_tables(self) -> Tables:
        """The current snapshot. It decides the request, not the snapshot from when the body began to arrive."""
        self._heartbeat.require_current()
        assert self._snapshot.tables is not None, "a caller was found in it"
        return self._snapshot.tables


async def _yield_to_streams() -> None:
    """Let the event loop serve running streams: preparing a request in one piece would delay them by 0.3 ms."""
    await asyncio.sleep(0)


def output_ceiling(prompt_tokens: int, requested: int | None, limits: Limits, base: BaseModelRoute) -> int:
    """``max_tokens`` for the engine: what the caller asked for, else all that its limits and the context allow. Whether
    that is allowed, ``require_output_allowed`` decides.
    """
    if requested is not None:
        return requested
    return min(min(limits.context_tokens, base.context_tokens) - prompt_tokens, limits.output_tokens)


def require_output_allowed(
    prompt_tokens: int, call: Call, limits: Limits, base: BaseModelRoute, *, plan: Limits
) -> None:
    """Refuse a request that its limits or the context do not allow, instead of cutting its answer short without notice.
    ``limits`` are the plan's, or smaller ones of the key. Raises InvalidRequest.
    """
    context, requested, param = min(limits.context_tokens, base.context_tokens), call.max_tokens, call.max_tokens_param
    if prompt_tokens + (requested or 1) > context:
        raise ContextLengthExceeded(
            context_tokens=context,
            model_tokens=base.context_tokens,
            allowed_by="plan" if limits.context_tokens == plan.context_tokens else "key",
            prompt_tokens=prompt_tokens,
            max_tokens=requested,
            prompt_param="prompt" if call.messages is None else "messages",
            max_tokens_param=param,
        )
    if requested is not None and requested > limits.output_tokens:
        allowed_by = "plan" if limits.output_tokens == plan.output_tokens else "key"
        raise InvalidRequest(
            f"`{param}` is {requested}; the {allowed_by} allows at most {limits.output_tokens}. Lower `{param}`.",
            code="invalid_value",
            param=param,
        )
