"""The life of a request, from key to bill: the one file that knows the order of the steps.

Each step is a file of its own. Whatever ends a request, what it held is settled exactly once before its end is told.
"""

import asyncio
import hmac
import time
from functools import lru_cache, partial
from typing import Final

from core.contracts.grants import Limits
from core.contracts.routes import BaseModelRoute
from core.errors import Conflict, InvalidRequest, Unprocessable
from data_plane.gateway import metrics
from data_plane.gateway.admission.admission import Admission
from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.api.client_connection import CLIENT_GONE, Client
from data_plane.gateway.api.openai_request import Call, Kind, Parse, engine_body, parse_call
from data_plane.gateway.errors import QuotaExceeded
from data_plane.gateway.quota.allowance import PlatformLimits, allowance
from data_plane.gateway.request.active_request import Prepared, Serving
from data_plane.gateway.request.idempotency import Idempotency
from data_plane.gateway.request.preparation import Preparation
from data_plane.gateway.scheduling.adapter_last_used import AdapterLastUsed
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.attempt import Relayed
from data_plane.gateway.upstream.relay import Relay

_SALTS_KEPT_MAX: Final = 4096


class Lifecycle:
    """Serves requests over what app.py built."""

    def __init__(
        self,
        settings: GatewaySettings,
        preparation: Preparation,
        admission: Admission,
        settler: Settler,
        relay: Relay,
        last_used: AdapterLastUsed,
        idempotency: Idempotency,
        clock: RedisClock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._last_used = last_used
        self._idempotency = idempotency
        self._preparation = preparation
        self._admission = admission
        self._settler = settler
        self._relay = relay
        self._salt = lru_cache(_SALTS_KEPT_MAX)(partial(_salt, settings.salt_secret.get_secret_value().encode()))
        self._platform = platform_limits(settings)
        self._longest_ms = settings.longest_ms

    async def complete(self, kind: Kind, client: Client, request_id: str, parse: Parse = parse_call) -> None:
        """Serve one completion. Raises AppError for what could be told before the response began."""
        arrived = time.monotonic()
        prepared = await self._preparation.prepare(kind, client, request_id, parse)
        try:
            async with self._idempotency.once(client, prepared.caller, request_id) as first:
                if first:
                    await self._run(client, prepared, arrived)
        except (QuotaExceeded, InvalidRequest, Conflict, Unprocessable):
            self._preparation.unpaid.charge(prepared.caller.tenant.tenant_id)
            raise

    async def _run(self, client: Client, prepared: Prepared, arrived: float) -> None:
        """Admit, relay, settle, and tell the caller how it ended."""
        call, target, tenant = prepared.call, prepared.target, prepared.caller.tenant
        max_tokens = output_ceiling(prepared.prompt_tokens, call.max_tokens, prepared.caller.limits, target.base)
        demand = Demand(
            request_id=prepared.request_id,
            limits=tenant.limits,
            allowance=allowance(tenant, prepared.caller.key, self._platform, longest_ms=self._longest_ms),
            base_model=target.base.id,
            engine_name=target.engine_name,
            sequences=call.n,
            prompt_tokens=prepared.prompt_tokens,
            max_tokens=max_tokens,
            min_tokens=self._least(call, max_tokens),
            rank=target.rank,
            affinity=prepared.affinity,
            stream=call.stream,
        )
        place = await self._admission.admit(demand, client.watch)
        service = Serving(
            self._settings, self._clock, self._admission, self._relay, client, prepared, demand, place, arrived
        )
        try:
            relayed = await service.run(engine_body(
                call,
                model=target.engine_name,
                max_tokens=place.verdict.max_tokens,
                cache_salt=self._salt(tenant.tenant_id),
            ))  # fmt: skip
        finally:
            settlement = None
            try:
                settlement = service.settlement()
                await self._settler.settle(settlement)
            finally:
                if settlement is None:
                    self._settler.let_go(service.place.hold)
                self._admission.ended(demand, service.place, None if settlement is None else settlement.event)
                service.close()
        if target.adapter is not None:
            self._last_used.record(target.base.id, service.replica.rank_max, target.engine_name)
        metrics.REQUEST_SECONDS.observe(time.monotonic() - arrived)
        await self._end(client, call, relayed, service)

    async def _end(self, client: Client, call: Call, relayed: Relayed, service: Serving) -> None:
        """Tell the caller how it ended, now that it has settled."""
        if relayed.outcome == "client_gone":
            client.status = client.status or CLIENT_GONE
            return
        if relayed.error is not None and not client.started:
            raise relayed.error
        patience_s = self._settings.last_write_s
        try:
            async with asyncio.timeout(None if client.reads else patience_s):
                if relayed.error is not None:
                    await client.break_off(relayed.error)
                elif call.stream:
                    await client.finish(relayed.ending)
                else:
                    await client.deliver(relayed.ending, service.headers)
            if not client.reads:
                async with asyncio.timeout(patience_s + len(relayed.ending) / self._settings.client_min_bytes_per_s):
                    await client.drained()
        except TimeoutError:
            client.cut()  # else what it does not read stays in memory for as long as it likes

    def _least(self, call: Call, max_tokens: int) -> int:
        """The fewest tokens to be content with: what was asked for is given whole or refused, since an answer cut short
        without a word is worse; who asked for none takes what quotas leave.
        """
        return max_tokens if call.max_tokens is not None else min(max_tokens, self._settings.min_completion_tokens)


def _salt(secret: bytes, tenant_id: str) -> str:
    """One tenant's prefix cache is closed to every other: same tenant, same salt, guessable by nobody."""
    return hmac.digest(secret, tenant_id.encode(), "sha256").hex()


def output_ceiling(prompt_tokens: int, asked: int | None, limits: Limits, base: BaseModelRoute) -> int:
    """``max_tokens`` for the engine. Absent means all that plan, key and context allow; more is refused, since
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
            f"`max_tokens` is {asked}; at most {limits.output_tokens} are allowed to this key.",
            code="invalid_value",
            param="max_tokens",
        )
    return asked if asked is not None else min(room, limits.output_tokens)


def platform_limits(settings: GatewaySettings) -> PlatformLimits:
    """The limits of all tenants together."""
    return PlatformLimits(
        requests_per_minute=settings.platform_requests_per_minute,
        tokens_per_minute=settings.platform_tokens_per_minute,
        input_tokens_per_minute=settings.platform_input_tokens_per_minute,
        output_tokens_per_minute=settings.platform_output_tokens_per_minute,
        concurrent_requests=settings.platform_concurrent_requests,
        kv_pages=settings.platform_kv_pages,
    )
