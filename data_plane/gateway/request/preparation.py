"""The first half of a request: who calls, what exactly is asked for, and of which model. Nothing is taken yet.

All that can be refused without touching a limit is refused here. Fails closed where the snapshot is missing or stale.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import AppError, TooManyRequests, Unavailable
from data_plane.gateway.api.client_connection import Client
from data_plane.gateway.api.model_catalog import resolve
from data_plane.gateway.api.openai_request import BodyLimits, Kind, Parse, check_vocabulary, parse_call
from data_plane.gateway.api.prompt_counter import PromptCounters
from data_plane.gateway.api.schema_compiler import SchemaCompiler
from data_plane.gateway.api.tenant_thread_pool import TenantThreadPool
from data_plane.gateway.quota.unmetered_rate_limit import Unpaid
from data_plane.gateway.request.active_request import Prepared
from data_plane.gateway.scheduling.affinity import affinity_key, session_key
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.state.authenticate import Caller, authenticate
from data_plane.gateway.state.heartbeat import Heartbeat
from data_plane.gateway.state.snapshot import Snapshot, Tables


class Preparation:
    """Reads requests over what is published."""

    def __init__(
        self,
        settings: GatewaySettings,
        snapshot: Snapshot,
        heartbeat: Heartbeat,
        threads: TenantThreadPool,
        counters: PromptCounters,
        grammars: SchemaCompiler,
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._heartbeat = heartbeat
        self._threads = threads
        self._counters = counters
        self._grammars = grammars
        self.unpaid = Unpaid(settings.tenant_unmetered_requests_per_s)
        self._pepper = settings.key_pepper.get_secret_value().encode()
        self._preparing: Counter[str] = Counter()
        self._body_limits = BodyLimits(settings.json_depth_max, settings.messages_max)

    def identify(self, client: Client) -> tuple[Caller, Tables]:
        """Who calls, and what is published now, for answers that take from no limit. Raises AppError."""
        caller, tables = self._identify(client)
        self.unpaid.charge(caller.tenant.tenant_id)
        return caller, tables

    def _identify(self, client: Client) -> tuple[Caller, Tables]:
        """Decided before anything of the body is read."""
        client.check_headers(count_max=self._settings.headers_max, bytes_max=self._settings.headers_max_bytes)
        tables = self._snapshot.tables
        if tables is None:
            raise Unavailable("The gateway has not loaded its snapshot yet.", code="not_ready", retry_after_s=1)
        caller = authenticate(client.request_headers, tables, self._pepper)
        self.unpaid.check(caller.tenant.tenant_id)
        return caller, tables

    async def prepare(self, kind: Kind, client: Client, request_id: str, parse: Parse = parse_call) -> Prepared:
        """Authenticate, read, check, resolve, compile and count. Raises AppError or ClientGone."""
        caller, _ = self._identify(client)
        try:
            with self._place(caller.tenant.tenant_id):
                prepared = await self._prepare(caller, kind, client, request_id, parse)
        except AppError as error:
            if error.status < 500:
                self.unpaid.charge(caller.tenant.tenant_id)
            raise
        if kind == "tokenize":
            self.unpaid.charge(caller.tenant.tenant_id)
        return prepared

    async def _prepare(self, caller: Caller, kind: Kind, client: Client, request_id: str, parse: Parse) -> Prepared:
        tenant_id = caller.tenant.tenant_id
        raw = await client.read_json_bytes(bytes_max=self._settings.body_max_bytes, timeout_s=self._settings.body_s)
        read_at = time.monotonic()
        await _events_first()
        if len(raw) <= self._settings.parse_inline_max_bytes:
            call = parse(kind, raw, self._body_limits)
        else:
            call = await self._threads.run(tenant_id, parse, kind, raw, self._body_limits)
        session = session_key(client.request_headers, call)
        target = resolve(self._current(), tenant_id, call.model, draw=session or request_id)
        check_vocabulary(call, target.base.vocab_size)
        if kind != "tokenize":
            await self._grammars.check(tenant_id, target.base, call)
        await _events_first()
        prompt_tokens = await self._counters.count(tenant_id, target.base, call, len(raw))
        await _events_first()
        affinity = affinity_key(tenant_id, session, call)
        return Prepared(request_id, caller, call, target, prompt_tokens, read_at, affinity)

    @contextmanager
    def _place(self, tenant_id: str) -> Iterator[None]:
        """One of the places that a tenant has for requests no limit has been asked about yet."""
        most = self._settings.tenant_preparing_max
        if self._preparing[tenant_id] >= most:
            raise TooManyRequests(
                f"At most {most} of your requests are read at a time.", code="too_many_unread_requests", retry_after_s=1
            )
        self._preparing[tenant_id] += 1
        try:
            yield
        finally:
            self._preparing[tenant_id] -= 1
            if not self._preparing[tenant_id]:
                del self._preparing[tenant_id]

    def _current(self) -> Tables:
        """What is published now, by which a request is decided: not what was when its body began to come."""
        self._heartbeat.require_current()
        assert self._snapshot.tables is not None, "a caller was found in it"
        return self._snapshot.tables


async def _events_first() -> None:
    """Let what came for running streams pass: all of a request's preparation at once holds them up for 0.3 ms."""
    await asyncio.sleep(0)
