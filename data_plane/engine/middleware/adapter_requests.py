"""A request for an adapter on its way through the door: refused when revoked, made warm, counted while it runs, and
ended without a word of the model when its adapter has failed in a step.

The order of the steps is here; each step has a file of its own. Fails closed.
"""

import asyncio
import json
import secrets
from typing import Final

import structlog

from adapters.cache.adapter_cache import DiskCache
from core.adapter_names import is_engine_name
from core.errors import AppError, InvalidRequest, TooLarge, Unavailable
from data_plane.engine.control_protocol import EngineInventory
from data_plane.engine.middleware.adapter_loader import AdapterLoader
from data_plane.engine.middleware.asgi import (
    App,
    CallerDisconnected,
    Message,
    Receive,
    Scope,
    Send,
    body,
    header,
    refuse,
)
from data_plane.engine.middleware.disk_leases import DiskLeases
from data_plane.engine.middleware.in_flight import InFlightRequests
from data_plane.engine.middleware.load_report import ReportingSend, StallReports
from data_plane.engine.middleware.revoked_adapters import RevokedAdapters
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from data_plane.engine.middleware.worker_client import WorkerClient
from data_plane.engine.residency import ResidencyReader
from data_plane.engine.settings import MiddlewareSettings

_log: Final = structlog.get_logger()
_ADAPTER_HEADER: Final = b"x-tenora-adapter"
_TENANT_HEADER: Final = b"x-tenora-tenant"
_REQUEST_ID_HEADER: Final = b"x-request-id"
# What vLLM makes of a request's id; a completion gets an index per prompt, and gateways send one.
_ENGINE_IDS: Final = {"/v1/chat/completions": "chatcmpl-{}", "/v1/completions": "cmpl-{}-0"}


class AdapterFailed(Unavailable):
    """The adapter was lost between the door and a step."""

    default_code = "adapter_failed"


class AdapterRequests:
    """What the door knows of adapters. Built in the API server, used on its one event loop."""

    def __init__(self, settings: MiddlewareSettings, cache: DiskCache) -> None:
        self.settings = settings
        self.refused = RevokedAdapters()
        self.disk = DiskLeases(cache, self.refused, settings.base_model, settings.adapter_load_deadline_s)
        self.residency = ResidencyReader(settings.run_dir)
        self.worker = WorkerClient(settings.run_dir)
        self.warmer = AdapterLoader(settings, self.refused, self.disk, self.worker, self.residency)
        self.in_flight = InFlightRequests()
        self._stalls = StallReports(self.residency)
        self._healing: dict[str, asyncio.Task[None]] = {}

    async def generate(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of a route that generates, with or without an adapter."""
        try:
            name, receive = await self._adapter_of(scope, receive)
            if name is None:
                await app(scope, receive, send)
            else:
                await self._generate(name, app, scope, receive, send)
        except AppError as error:
            await refuse(send, error)
        except CallerDisconnected:
            return

    async def _generate(self, name: str, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        if (healing := self._healing.get(name)) is not None:
            await asyncio.shield(healing)
        self.refused.check(name)
        with self.in_flight.request(name, _engine_id(scope)):  # nothing awaited in between: an unload counts it or not
            async with self.warmer.warm(name, header(scope, _TENANT_HEADER)) as warmth:
                self.refused.check(name)
                front_end = VllmFrontend(scope["app"].state)
                reported = ReportingSend(send, name, warmth, self._stalls, lambda: self._heal(name, front_end))
                await app(scope, receive, reported)
        if reported.started and reported.failed:
            await reported.end_early()
        elif reported.failed:
            raise AdapterFailed("the adapter was lost on its way into the engine; ask again", retry_after_s=1)

    async def take_out(self, name: str, front_end: VllmFrontend, *, idle: bool) -> EngineInventory:
        """Empty slots and host memory of an adapter. While a request of it runs on (not ``idle``) vLLM keeps its name,
        since under a second number it would be two adapters to the worker; and what a step has cached while its slot
        was empty is dropped.
        """
        had_failed = self._stalls.has_failed(name)
        truth = await front_end.unload(name)
        self.warmer.lost(name)
        if idle:
            front_end.forget(name)
        if had_failed or not idle:
            await front_end.drop_prefix_cache()
        return truth

    async def _adapter_of(self, scope: Scope, receive: Receive) -> tuple[str | None, Receive]:
        """The engine name a request asks for, None for the base model. Gateways say it in a header; for others the
        body is read, so that nobody comes around the door.
        """
        if (name := header(scope, _ADAPTER_HEADER)) is not None:
            if not is_engine_name(name):
                raise InvalidRequest("x-tenora-adapter must be <adapter id>@<digest>", param="x-tenora-adapter")
            return name, receive
        content = await body(receive, self.settings.engine_body_bytes_max)
        if content is None:
            raise TooLarge(f"the body is larger than {self.settings.engine_body_bytes_max} bytes")
        return _model_of(content), _replay(content, receive)

    def _heal(self, name: str, front_end: VllmFrontend) -> None:
        if name not in self._healing:
            self._healing[name] = task = asyncio.create_task(self._forget_failure(name, front_end))
            task.add_done_callback(lambda _: self._healing.pop(name, None))

    async def _forget_failure(self, name: str, front_end: VllmFrontend) -> None:
        """A fresh start: no request, no empty slot, and no cached prefix of what was never the adapter's."""
        _log.error("adapter failed in a step; ending its requests", adapter=name)
        try:
            await front_end.abort(self.in_flight.ids(name))
            idle = await self.in_flight.wait_idle(name, self.settings.unload_abort_timeout_s)
            await self.take_out(name, front_end, idle=idle)
        except Exception:  # noqa: BLE001 - vLLM has errors of its own; the next request finds it failed still
            _log.exception("adapter could not be taken out after it failed", adapter=name)


def _engine_id(scope: Scope) -> str:
    """The id under which vLLM will know the request; one is given to those without."""
    if (request_id := header(scope, _REQUEST_ID_HEADER)) is None:
        request_id = f"door-{secrets.token_hex(12)}"
        scope["headers"] = [*scope["headers"], (_REQUEST_ID_HEADER, request_id.encode())]
    return _ENGINE_IDS[scope["path"]].format(request_id)


def _model_of(content: bytes) -> str | None:
    if b"ad_" not in content:
        return None
    try:
        model = json.loads(content)["model"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # vLLM says what is wrong with it
    return model if isinstance(model, str) and is_engine_name(model) else None


def _replay(content: bytes, receive: Receive) -> Receive:
    """A ``receive`` that begins with a body that was read already."""
    first: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
