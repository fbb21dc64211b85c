"""The first step of a request: authenticate the caller, read the body, resolve the model, count the prompt. The result
is an InferenceRequest that holds no resource yet.

Every refusal that needs no quota happens here. Fails closed: without a current snapshot no request is prepared.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from core.contracts.grants import Limits, ServiceClass
from core.contracts.routes import BaseModelRoute, GroupRoute
from core.errors import AppError, InvalidRequest, NotFound, TooManyRequests, Unavailable
from core.ids import derived_id, ms_of_id
from core.line_credential import LineCredential, read_line, shown_line
from data_plane.gateway.api.chat_template import require_tools_rendered
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.model_catalog import Target, find_group, require_callable, require_task, resolve
from data_plane.gateway.api.openai_request import BodyLimits, Call, Kind, Parse, check_vocabulary, parse_call
from data_plane.gateway.api.prompt_counter import PromptCounters
from data_plane.gateway.api.schema_compiler import SchemaCompiler
from data_plane.gateway.api.service_class import service_class
from data_plane.gateway.api.tenant_thread_pool import TenantThreadPool
from data_plane.gateway.errors import ContextLengthExceeded, Headers
from data_plane.gateway.providers.formats import format_of
from data_plane.gateway.quota.unmetered_rate_limit import UnmeteredRateLimiter
from data_plane.gateway.routing.router import Router, route_to
from data_plane.gateway.scheduling.affinity import affinity_key, session_key
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.state.authenticate import Caller, authenticate, authenticate_line
from data_plane.gateway.state.heartbeat import Heartbeat
from data_plane.gateway.state.snapshot import Snapshot, Tables

_NONE: Final = frozenset[str]()
_PROMPT_PARAMS: Final[dict[Kind, str]] = {"embedding": "input"}


class _Asked(NamedTuple):
    """What was read of a request, before its model is known."""

    caller: Caller
    headers: Headers
    request_id: str
    call: Call
    session: str
    body_bytes: int
    arrived_at: float
    read_at: float
    is_line: bool


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
        router: Router,
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._heartbeat = heartbeat
        self._threads = threads
        self._counters = counters
        self._schemas = schemas
        self._router = router
        self.unmetered = UnmeteredRateLimiter(settings.tenant_unmetered_requests_per_s)
        self._peppers = settings.peppers
        self._preparing: Counter[str] = Counter()
        self._body_limits = BodyLimits(settings.json_depth_max, settings.messages_max, settings.tools_max_bytes)

    def line_of(self, headers: Iterable[tuple[bytes, bytes]]) -> LineCredential | None:
        """The credential of the batch worker; None for every other caller, and where it is not valid."""
        shown = shown_line(headers)
        return None if shown is None else read_line(shown, self._peppers, now_s=time.time())

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
        if client.line is not None:
            caller = authenticate_line(client.line, tables)
        else:
            caller = authenticate(client.request_headers, tables, *self._peppers)
        client.phases.caller = caller
        if client.line is None:
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
                self.charge_refusal(client, caller.tenant.tenant_id)
            raise
        if kind == "tokenize":
            self.unmetered.charge(caller.tenant.tenant_id)
        return request

    def charge_refusal(self, client: Client, tenant_id: str) -> None:
        """Count a request that no quota meters, except of the batch worker, which waits by itself after a refusal."""
        if client.line is None:
            self.unmetered.charge(tenant_id)

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
        asked = _Asked(
            caller, client.request_headers, request_id, call, session, len(raw), arrived_at, read_at,
            client.line is not None,
        )  # fmt: skip
        tables = self._current_tables()
        if (group := find_group(tables, tenant_id, call.model)) is None:
            target = resolve(tables, tenant_id, call.model, draw=session or request_id)
            require_callable(caller, call.model, *target.names)
            request = await self._for_target(asked, tables, target)
        else:
            require_callable(caller, call.model, group.name)
            request = await self._for_group(asked, tables, group)
        client.phases.request = request
        return request

    async def next_member(
        self, request: InferenceRequest, client: Client, reason: str, *, is_new: bool = False, **changes: Any
    ) -> InferenceRequest | None:
        """The same request for the next member of its group that can serve it, with ``changes`` of its route. None
        where the group has none that may follow. One that ``is_new`` names the first one, and has an id of its own that
        follows from the one before: a line of a batch that is sent again has the same ids again.
        """
        route, request_id = request.route, request.id
        if route is None or not route.rest:
            return None
        first_request_id = route.first_request_id or request_id
        if is_new:
            changes["first_request_id"] = first_request_id
            request_id = derived_id("req", ms_of_id(request_id) or 0, request_id)
        session = session_key(client.request_headers, request.call)
        unknown_bytes = self._settings.body_max_bytes  # so that it is counted in a thread, as a long body is
        asked = _Asked(
            request.caller, client.request_headers, request_id, request.call, session, unknown_bytes,
            request.arrived_at, request.read_at, client.line is not None,
        )  # fmt: skip
        for place, model in enumerate(route.rest, start=1):
            rest, tables = route.rest[place:], self._current_tables()
            with contextlib.suppress(InvalidRequest, NotFound):
                target = resolve(tables, route.group.tenant_id, model, draw=session or first_request_id)
                following = await self._fitting(asked, tables, target)
                changes = {"rest": rest, "patience_s": route.patience_s if rest else None, **changes}
                return msgspec.structs.replace(
                    following, route=msgspec.structs.replace(route, reason=reason, **changes)
                )
        return None

    async def _for_group(self, asked: _Asked, tables: Tables, group: GroupRoute) -> InferenceRequest:
        """The request for the first member, in the order of the group's rule, that can serve it. Raises what is wrong
        with the request for the first of them where none can.
        """
        choice = self._router.choose(
            tables, group, asked.caller, asked.call, session=asked.session, request_id=asked.request_id
        )
        wrong: InvalidRequest | None = None
        for place, target in enumerate(choice.order):
            try:
                request = await self._fitting(asked, tables, target)
                return msgspec.structs.replace(request, route=route_to(group, choice, place, request))
            except InvalidRequest as error:
                wrong = wrong or error.with_traceback(None)  # which refers to this frame
        assert wrong is not None, "a group has members"
        raise wrong

    async def _fitting(self, asked: _Asked, tables: Tables, target: Target) -> InferenceRequest:
        """The request for a member. Raises InvalidRequest where the member cannot serve it."""
        request = await self._for_target(asked, tables, target)
        plan = asked.caller.tenant.limits
        if asked.call.kind != "tokenize":
            require_output_allowed(max(request.prompts), asked.call, request.limits, target.base, plan=plan)
        return request

    async def _for_target(self, asked: _Asked, tables: Tables, target: Target) -> InferenceRequest:
        """Check the request against its model, and count it."""
        caller, call, tenant_id = asked.caller, asked.call, asked.caller.tenant.tenant_id
        require_task(target, call.kind)
        check_vocabulary(call, target.base.vocab_size)
        require_tools_rendered(target.base, call)
        provider = target.base.provider
        if provider is not None:
            format_of(provider).require_taken(call)
        elif call.kind != "tokenize":
            await self._schemas.check(tenant_id, target.base, call)
        await _yield_to_streams()
        counted = await self._counters.count(tenant_id, target.base, call, asked.body_bytes)
        if provider is not None and call.kind != "tokenize":
            counted = [provider.with_margin(tokens) for tokens in counted]
        await _yield_to_streams()
        limits = caller.limits
        max_tokens = output_ceiling(max(counted), call.max_tokens, limits, target.base)
        has_flex = caller.tenant.flex_prices is not None
        tier = None if call.service_tier == "flex" and not has_flex else call.service_tier
        granted = service_class(asked.headers, tier, limits.service_classes, output_tokens=max_tokens)
        closed, own = _pools(tables, tenant_id, granted, max(counted) + max_tokens)
        return InferenceRequest(
            id=asked.request_id,
            caller=caller,
            limits=limits,
            call=call,
            target=target,
            engine_name=target.engine_name,
            prompts=tuple([prompt_tokens for prompt_tokens in counted for _ in range(call.n)]),
            max_tokens=max_tokens,
            min_tokens=self._min_tokens(call, max_tokens),
            affinity=affinity_key(tenant_id, asked.session, call),
            arrived_at=asked.arrived_at,
            read_at=asked.read_at,
            service_class=granted,
            closed_pools=closed,
            own_pools=own,
            # A line of a batch costs the same when its batch is in danger of its deadline and runs as a better class.
            service_tier="flex" if has_flex and (granted == "batch" or asked.is_line) else "default",
        )

    def _min_tokens(self, call: Call, max_tokens: int) -> int:
        """The smallest grant to accept. A requested ``max_tokens`` is granted in full or refused, since an answer that
        is cut short without notice is worse; a request without one accepts what quotas leave.
        """
        return max_tokens if call.max_tokens is not None else min(max_tokens, self._settings.min_completion_tokens)

    @contextlib.contextmanager
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


def _pools(
    tables: Tables, tenant_id: str, service_class: ServiceClass, tokens: int
) -> tuple[frozenset[str], frozenset[str]]:
    """The pools that do not serve a request, and its tenant's dedicated ones that do."""
    if not tables.pools:
        return _NONE, _NONE
    closed = {name for name, pool in tables.pools.items() if not pool.serves(tenant_id, service_class, tokens)}
    own = {name for name, pool in tables.pools.items() if pool.tenants is not None and name not in closed}
    return frozenset(closed), frozenset(own)


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
    if prompt_tokens + (requested or call.kind != "embedding") > context:
        raise ContextLengthExceeded(
            context_tokens=context,
            model_tokens=base.context_tokens,
            allowed_by="plan" if limits.context_tokens == plan.context_tokens else "key",
            prompt_tokens=prompt_tokens,
            max_tokens=requested or None,
            prompt_param=_PROMPT_PARAMS.get(call.kind, "messages" if call.prompts is None else "prompt"),
            max_tokens_param=param,
        )
    if requested is not None and requested > limits.output_tokens:
        allowed_by = "plan" if limits.output_tokens == plan.output_tokens else "key"
        raise InvalidRequest(
            f"`{param}` is {requested}; the {allowed_by} allows at most {limits.output_tokens}. Lower `{param}`.",
            code="invalid_value",
            param=param,
        )
