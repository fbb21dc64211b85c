"""The life of an inference request, from API key to usage event: the one file that knows the order of the steps.

Each step has its file. However a request ends, its reservation is settled exactly once before the caller sees
the end of the response.
"""

import asyncio
import hmac
import time
from functools import lru_cache, partial
from typing import Final

from core.errors import Conflict, InvalidRequest, Unavailable, Unprocessable
from data_plane.gateway import metrics
from data_plane.gateway.admission.admission import Admission
from data_plane.gateway.admission.moves import Placement
from data_plane.gateway.api.client_connection import CLIENT_GONE, Client
from data_plane.gateway.api.embeddings import embeddings_body
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.api.openai_request import Kind, Parse, engine_body, parse_call
from data_plane.gateway.errors import Headers, QuotaExceeded, RequestSettled
from data_plane.gateway.providers.formats import provider_body
from data_plane.gateway.quota.allowance import Allowance, PlatformLimits, allowance
from data_plane.gateway.request.active_request import ActiveRequest
from data_plane.gateway.request.cascade import Cascades
from data_plane.gateway.request.idempotency import Idempotency
from data_plane.gateway.request.preparation import Preparation, require_output_allowed
from data_plane.gateway.routing.router import REASON_AFTER
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settlement.settler import Settler
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.attempt import AttemptResult
from data_plane.gateway.upstream.engine_client import LocalShortage, ReplicaFailed
from data_plane.gateway.upstream.relay import Relay

_SALTS_KEPT_MAX: Final = 4096


class Lifecycle:
    """Serves inference requests with the objects that app.py built."""

    def __init__(
        self,
        settings: GatewaySettings,
        preparation: Preparation,
        admission: Admission,
        settler: Settler,
        relay: Relay,
        idempotency: Idempotency,
        clock: RedisClock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._idempotency = idempotency
        self._preparation = preparation
        self._admission = admission
        self._settler = settler
        self._relay = relay
        self._cascades = Cascades(preparation, self._serve, self._serve_by_any)
        self._salt = lru_cache(_SALTS_KEPT_MAX)(partial(_salt, settings.salt_secret.get_secret_value().encode()))
        self._platform = platform_limits(settings)
        self._longest_ms = settings.longest_ms

    async def complete(self, kind: Kind, client: Client, request_id: str, parse: Parse = parse_call) -> None:
        """Serve one completion. Raises AppError for a failure before the response began."""
        request = await self._preparation.prepare(kind, client, request_id, parse)
        route = request.route
        try:
            async with self._idempotency.once(client, request.caller, request.id) as first:
                if first and route is None:
                    plan, base = request.caller.tenant.limits, request.target.base
                    require_output_allowed(max(request.prompts), request.call, request.limits, base, plan=plan)
                    await self._serve(request, client)
                elif first and route is not None and route.group.may_replace(request.target.shown_name):
                    await self._cascades.serve(request, client)
                elif first:
                    await self._serve_by_any(request, client)
        except (QuotaExceeded, InvalidRequest, Conflict, Unprocessable):
            self._preparation.charge_refusal(client, request.tenant_id)
            raise

    async def _serve_by_any(self, request: InferenceRequest, client: Client) -> None:
        """Serve by the request's member, and by the next one of its group where it fails before its first byte. A
        request that failed so has cost nothing, also where the line of a batch is sent again and failed before.
        """
        while True:
            try:
                return await self._serve(request, client)
            except (ReplicaFailed, LocalShortage, RequestSettled, InvalidRequest) as error:
                following = None
                is_final = isinstance(error, InvalidRequest) and error.code != "request_refused"  # by a provider
                if not client.started and not is_final and error.code != "request_settled":
                    following = await self._preparation.next_member(request, client, "failed", is_new=True)
                if following is None:
                    raise
                request = following

    async def _serve(self, request: InferenceRequest, client: Client) -> None:
        """Admit the request, relay the answer, settle, then end the response."""
        phases = client.phases
        phases.request, phases.asked_at = request, time.monotonic()
        try:
            request, placement = await self._place(request, client)
        finally:
            phases.admitted_at = time.monotonic()
        async with ActiveRequest(
            self._settings, self._clock, self._admission, self._relay, self._settler, client, request, placement
        ) as active:
            result = await active.run(self._engine_body(request, placement))
            if is_replaced := client.rejects(result.ending, active.headers, result.error):
                active.was_replaced()
        if not is_replaced:
            await self._end_response(client, request, result, active.headers)

    async def _place(self, request: InferenceRequest, client: Client) -> tuple[InferenceRequest, Placement]:
        """Admit the request, or, where its member cannot hold it or has no room in time, the same request for the next
        one of its group. A request of which nothing was admitted holds nothing, so each is asked with the same id.
        """
        try:
            placement = await self._admission.admit(request, self._allowance(request), client.watch, client.phases)
        except (Unavailable, InvalidRequest) as refusal:
            following = None
            if (reason := REASON_AFTER.get(refusal.code)) is not None:
                following = await self._preparation.next_member(request, client, reason)
            if following is None:
                raise
            client.phases.request = following
            try:
                return await self._place(following, client)
            except InvalidRequest:  # what the caller can change for the first member counts, or that it may wait
                raise refusal from None
        if (route := request.route) is not None:
            metrics.ROUTED_REQUESTS.labels(route.group.rule, route.reason).inc()
        return request, placement

    def _allowance(self, request: InferenceRequest) -> Allowance:
        caller = request.caller
        prices = caller.tenant.prices_of(request.base_model, request.rank_class, request.service_tier)
        adapter = request.target.adapter
        return allowance(
            caller.tenant,
            caller.key,
            self._platform,
            prices=prices,
            longest_ms=self._longest_ms,
            gpu_time=request.target.base.gpu_time,
            adapter_id=None if adapter is None else adapter.route.adapter_id,
            now_ms=self._clock.now_ms(),
        )

    def _engine_body(self, request: InferenceRequest, placement: Placement) -> bytes:
        if (provider := request.target.base.provider) is not None:
            return provider_body(request.call, provider, max_tokens=placement.verdict.max_tokens)
        model, salt = request.engine_name, self._salt(request.tenant_id)
        if request.call.kind == "embedding":
            return embeddings_body(request.call, model=model, cache_salt=salt)
        return engine_body(request.call, model=model, max_tokens=placement.verdict.max_tokens, cache_salt=salt)

    async def _end_response(
        self, client: Client, request: InferenceRequest, result: AttemptResult, headers: Headers
    ) -> None:
        """End the response, now that the request is settled."""
        if result.outcome == "client_gone":
            client.status = client.status or CLIENT_GONE
            return
        if result.error is not None and not client.started:
            raise result.error
        patience_s = self._settings.last_write_s
        try:
            async with asyncio.timeout(None if client.reads else patience_s):
                if result.error is not None:
                    await client.break_off(result.error)
                elif request.call.stream:
                    await client.finish(result.ending)
                else:
                    await client.deliver(result.ending, headers)
            if not client.reads:
                async with asyncio.timeout(patience_s + len(result.ending) / self._settings.client_min_bytes_per_s):
                    await client.drained()
        except TimeoutError:
            client.cut()  # else the bytes that the caller does not read stay in memory without a limit


def _salt(secret: bytes, tenant_id: str) -> str:
    """The salt that separates one tenant's prefix cache from all others: stable for a tenant, and not guessable."""
    return hmac.digest(secret, tenant_id.encode(), "sha256").hex()


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
