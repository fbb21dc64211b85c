"""One request for an adapter: refused when the adapter is revoked, held back until the adapter is in host memory,
counted while it runs, and ended without any output when its adapter has failed in a step.

The order of these steps is here; each step has its own module. Fails closed.
"""

import asyncio
import json
import secrets
from contextlib import AsyncExitStack
from typing import Final

import structlog

from adapters.cache.adapter_cache import AdapterCache
from core.adapter_names import is_engine_name
from core.errors import AppError, InvalidRequest, TooLarge, Unavailable
from data_plane.engine import engine_ids
from data_plane.engine.control_protocol import EngineInventory
from data_plane.engine.kv_table import KvTableReader
from data_plane.engine.middleware.aborts import Aborts, RunningRequest
from data_plane.engine.middleware.adapter_loader import AdapterLoader
from data_plane.engine.middleware.asgi import (
    App,
    CallerDisconnected,
    Message,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    send_error,
)
from data_plane.engine.middleware.disk_leases import DiskLeases
from data_plane.engine.middleware.ended_requests import EndedRequests
from data_plane.engine.middleware.in_flight import InFlightRequests
from data_plane.engine.middleware.load_report import AdapterReportingSend, KvReports, ReportingSend, StallReports
from data_plane.engine.middleware.revoked_adapters import RevokedAdapters
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from data_plane.engine.middleware.worker_client import WorkerClient
from data_plane.engine.residency import ResidencyReader
from data_plane.engine.settings import MiddlewareSettings

_log: Final = structlog.get_logger()
_ADAPTER_HEADER: Final = b"x-tenora-adapter"
_TENANT_HEADER: Final = b"x-tenora-tenant"
_REQUEST_ID_HEADER: Final = b"x-request-id"


class AdapterFailed(Unavailable):
    """The adapter was lost between the middleware's check and the step that needed it."""

    default_code = "adapter_failed"


class AdapterRequests:
    """The middleware's state of adapters and their requests. Built in the API server, used on its one event loop."""

    def __init__(self, settings: MiddlewareSettings, cache: AdapterCache) -> None:
        self.settings = settings
        self.revoked = RevokedAdapters()
        self.disk = DiskLeases(cache, self.revoked, settings.base_model, settings.adapter_load_deadline_s)
        self.residency = ResidencyReader(settings.run_dir)
        self.kv_table = KvTableReader(settings.run_dir)
        self.worker = WorkerClient(settings.run_dir)
        self.loader = AdapterLoader(settings, self.revoked, self.disk, self.worker, self.residency)
        self.in_flight = InFlightRequests()
        self.aborts = Aborts(settings.abort_report_timeout_s)
        self.ended = EndedRequests(
            self.kv_table,
            hours_max=settings.engine_usage_hours_max,
            requests_max=settings.engine_usage_requests_max,
        )
        self._stalls = StallReports(self.residency)
        self._recoveries: dict[str, asyncio.Task[None]] = {}

    async def generate(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request of a generating route, with or without an adapter."""
        try:
            connection = receive
            name, receive = await self._adapter_of(scope, receive)
            with self.aborts.track(request_id := _engine_id(scope)) as running:
                async with self.ended.counted(
                    request_id,
                    header(scope, _REQUEST_ID_HEADER) or "",
                    header(scope, _TENANT_HEADER),
                    connection,
                    running,
                    VllmFrontend(scope["app"].state),
                ):
                    if name is None:
                        await app(scope, receive, ReportingSend(send, running, self._kv_reports(request_id)))
                    else:
                        await self._generate(name, request_id, running, app, scope, receive, send)
        except AppError as error:
            await send_error(send, error)
        except CallerDisconnected:
            return

    async def _generate(
        self, name: str, request_id: str, running: RunningRequest, app: App, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if (recovery := self._recoveries.get(name)) is not None:
            await asyncio.shield(recovery)
        self.revoked.require_not_revoked(name)
        # No await between this check and the count: an unload either counts the request or refuses it.
        with self.in_flight.track(name, request_id):
            async with AsyncExitStack() as stack:
                loading = self.loader.loaded(name, header(scope, _TENANT_HEADER))
                outcome = await running.until_aborted(stack.enter_async_context(loading))
                self.revoked.require_not_revoked(name)
                front_end = VllmFrontend(scope["app"].state)
                reporting = AdapterReportingSend(
                    send,
                    running,
                    self._kv_reports(request_id),
                    name,
                    outcome,
                    self._stalls,
                    lambda: self._recover(name, front_end),
                )
                await app(scope, receive, reporting)
        if reporting.started and reporting.failed:
            await reporting.end_early()
        elif reporting.failed:
            raise AdapterFailed(
                "the engine lost the adapter before the first token; retry the request", retry_after_s=1
            )

    async def evict(self, name: str, front_end: VllmFrontend, *, idle: bool) -> EngineInventory:
        """Remove an adapter from slots and host memory. While a request of it still runs (not ``idle``) vLLM keeps its
        name: under a second number the worker would see two adapters. The prefix cache is dropped when a step may have
        cached prefixes computed with an empty slot.
        """
        had_failed = self._stalls.has_failed(name)
        inventory = await front_end.unload(name)
        self.loader.mark_evicted(name)
        if idle:
            front_end.evict(name)
        if had_failed or not idle:
            await front_end.drop_prefix_cache()
        return inventory

    async def _adapter_of(self, scope: Scope, receive: Receive) -> tuple[str | None, Receive]:
        """The engine name that a request asks for, None for the base model. Gateways send it in a header. Without the
        header the body is read, so that no request can bypass the middleware.
        """
        if (name := header(scope, _ADAPTER_HEADER)) is not None:
            if not is_engine_name(name):
                raise InvalidRequest("x-tenora-adapter must be <adapter id>@<digest>", param="x-tenora-adapter")
            return name, receive
        content = await read_body(receive, self.settings.engine_body_bytes_max)
        if content is None:
            raise TooLarge(f"the body is larger than {self.settings.engine_body_bytes_max} bytes")
        return _model_of(content), _replay(content, receive)

    def _kv_reports(self, request_id: str) -> KvReports:
        return KvReports(self.kv_table, request_id, self.settings.kv_report_interval_s)

    def _recover(self, name: str, front_end: VllmFrontend) -> None:
        if name not in self._recoveries:
            self._recoveries[name] = task = asyncio.create_task(self._evict_failed(name, front_end))
            task.add_done_callback(lambda _: self._recoveries.pop(name, None))

    async def _evict_failed(self, name: str, front_end: VllmFrontend) -> None:
        """Reset a failed adapter: no requests, no empty slot, and no cached prefix that was computed without it."""
        _log.error("adapter failed in a step; aborting its requests", adapter=name)
        try:
            await front_end.abort(self.in_flight.ids(name))
            idle = await self.in_flight.wait_idle(name, self.settings.unload_abort_timeout_s)
            await self.evict(name, front_end, idle=idle)
        except Exception:  # noqa: BLE001 - vLLM has its own error types; the next request still finds the failure
            _log.exception("failed adapter could not be evicted", adapter=name)


def _engine_id(scope: Scope) -> str:
    """The id under which vLLM will know the request. A request without an id gets one."""
    if (request_id := header(scope, _REQUEST_ID_HEADER)) is None:
        request_id = f"local-{secrets.token_hex(12)}"
        scope["headers"] = [*scope["headers"], (_REQUEST_ID_HEADER, request_id.encode())]
    return engine_ids.BY_PATH[scope["path"]].format(request_id)


def _model_of(content: bytes) -> str | None:
    if b"ad_" not in content:
        return None
    try:
        model = json.loads(content)["model"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # vLLM reports what is wrong with it
    return model if isinstance(model, str) and is_engine_name(model) else None


def _replay(content: bytes, receive: Receive) -> Receive:
    """A ``receive`` that starts with a body that was read already."""
    first: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
