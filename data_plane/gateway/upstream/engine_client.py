"""HTTP requests to engines: completions, their progress, aborts and health checks, and what a response's status means.
It counts no tokens.

An engine's own error text never reaches a caller: it is logged, and becomes one of the errors below.
"""

import asyncio
from collections.abc import Mapping
from typing import ClassVar, Final, Self

import msgspec
import structlog

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import GenerationProgress
from core.errors import AppError, BadGateway, InvalidRequest, Unavailable
from data_plane.gateway.api.openai_request import ENGINE_PATHS, ID_PREFIXES, Kind
from data_plane.gateway.upstream.connection import EngineConnection, EngineLost, EngineResponse
from data_plane.gateway.upstream.connection_pool import ConnectionPool, ConnectionsExhausted

_log = structlog.get_logger()
_ERROR_BYTES_MAX = 65_536
_RETRY_MIN_S, _RETRY_MAX_S = 1.0, 300.0
_LOAD_FAILURES: Final = {
    "store_unavailable": "The adapter store cannot be reached; try again later.",
    "store_timeout": "The adapter store is too slow; try again later.",
    "object_damaged": "The stored adapter is damaged.",
    "adapter_cache_full": "The replica's disk has no room for the adapter; try again later.",
    "adapter_cache_failed": "The replica's disk cannot read the adapter; try again later.",
    "adapter_download_stopped": "The adapter's download was stopped.",
    "adapter_failed": "The replica lost the adapter.",
    "adapter_unusable": "The replica cannot load the adapter.",
    "engine_worker_unreachable": "The replica is starting or gone.",
}
"""Why a replica cannot load an adapter, by the error codes of its middleware. No other code reaches a caller."""


class _Error(msgspec.Struct):
    code: str
    eta_s: float | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class _Progress(msgspec.Struct):
    requests: dict[str, GenerationProgress]


class ReplicaFailed(BadGateway):
    """A replica returned nothing of an answer, so another may be tried. ``about_adapter``: the failure concerns only
    the adapter, and the replica is healthy.
    """

    about_adapter = False


class AdapterUnavailable(ReplicaFailed):
    """A replica cannot load the adapter. Another may; if none can, the caller receives the reason."""

    about_adapter = True
    status: ClassVar[int] = Unavailable.status


class AdapterLoadPending(Unavailable):
    """The adapter is still being loaded into a replica when the engine stops waiting. Another replica would only begin
    the same load again.
    """

    default_code = "adapter_loading"

    def __init__(self, retry_after_s: float, eta_s: float | None) -> None:
        message = f"The adapter is being loaded; try again in {retry_after_s:g} s."
        super().__init__(message, retry_after_s=retry_after_s, retryable=True)
        self.eta_s = eta_s


class LocalShortage(Unavailable):
    """No connection is left in this process. The replica did not cause it, and another replica would not help."""

    default_code = "overloaded"


class EngineClient:
    """Requests to engines over one connection pool. ``engine_key`` authenticates the gateway to every engine."""

    def __init__(
        self,
        *,
        engine_key: str,
        connect_s: float,
        keepalive_s: float,
        connections_max: int,
        connections_spare: int,
        head_max_bytes: int,
        unread_max_bytes: int,
    ) -> None:
        self._pool = ConnectionPool(
            connect_s=connect_s,
            keepalive_s=keepalive_s,
            connections_max=connections_max,
            spare=connections_spare,
            head_max_bytes=head_max_bytes,
            unread_max_bytes=unread_max_bytes,
        )
        self._authorization = f"Bearer {engine_key}"
        self._abort_s = connect_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()

    async def send(
        self, replica: ReplicaStatus, kind: Kind, request_id: str, body: bytes, *, adapter: str | None, tenant_id: str
    ) -> "EngineRequest":
        """Send a request. ``adapter`` is the engine name of the adapter that the replica must load first, in turn with
        other tenants' adapters. Raises ReplicaFailed or LocalShortage.
        """
        headers = {
            "authorization": self._authorization,
            "content-type": "application/json",
            "x-request-id": request_id,
            "x-tenora-tenant": tenant_id,  # the engine counts what each tenant's requests used
        }
        if adapter is not None:
            headers["x-tenora-adapter"] = adapter
        try:
            return EngineRequest(await self._pool.send("POST", replica.url, ENGINE_PATHS[kind], headers, body), replica)
        except ConnectionsExhausted as error:
            _log.warning("no connection left", error=str(error))
            raise LocalShortage("This gateway has no connection left; try again shortly.", retry_after_s=1) from error
        except OSError as error:
            raise _unreachable(replica, error) from error

    async def abort(self, replica: ReplicaStatus, kind: Kind, request_id: str) -> None:
        """Ask an engine to end a request now. Its response then ends normally, with the final count. Never raises."""
        try:
            status, _ = await self._post(replica, "/inference/v1/abort_requests", [external_id(kind, request_id)])
            if status != 200:
                _log.warning("abort refused", replica=replica.id, status=status)
        except OSError as error:  # TimeoutError is one
            _log.info("abort not delivered", replica=replica.id, error=repr(error))

    async def progress(self, replica: ReplicaStatus, external_ids: list[str]) -> dict[str, GenerationProgress]:
        """What an engine has generated for these requests so far; nothing of one without a token. Empty when the engine
        does not answer. Never raises.
        """
        try:
            status, raw = await self._post(replica, "/tenora/v1/progress", external_ids)
            return msgspec.json.decode(raw, type=_Progress).requests if status == 200 else {}
        except (OSError, msgspec.MsgspecError) as error:
            _log.info("progress of an engine unknown", replica=replica.id, error=repr(error))
            return {}

    async def _post(self, replica: ReplicaStatus, path: str, external_ids: list[str]) -> tuple[int, bytes]:
        """(status, body) of a call about requests. Raises OSError, of which TimeoutError is one."""
        async with asyncio.timeout(self._abort_s):
            response = await self._pool.request(
                "POST",
                replica.url,
                path,
                {"authorization": self._authorization, "content-type": "application/json"},
                msgspec.json.encode({"request_ids": external_ids}),
                spare=True,
            )
            try:
                return response.status, await response.read(_ERROR_BYTES_MAX)
            finally:
                response.close()

    async def is_healthy(self, replica: ReplicaStatus) -> bool:
        """Whether an engine's health check succeeds in time. Never raises."""
        try:
            async with asyncio.timeout(self._abort_s):
                response = await self._pool.request("GET", replica.url, "/health", {}, spare=True)
                try:
                    await response.read(_ERROR_BYTES_MAX)
                finally:
                    response.close()
                return response.status == 200
        except OSError:  # TimeoutError is one
            return False


def external_id(kind: Kind, request_id: str) -> str:
    """The id under which an engine knows a request."""
    # vLLM 0.32 gives each prompt an index where there may be several; the first one's stands for all.
    return ID_PREFIXES[kind] + request_id + ("" if kind == "chat" else "-0")


class EngineRequest:
    """A request that has been sent to an engine. The caller closes it."""

    def __init__(self, connection: EngineConnection, replica: ReplicaStatus) -> None:
        self._connection: EngineConnection | None = connection
        self._response: EngineResponse | None = None
        self._replica = replica

    async def response(self) -> EngineResponse:
        """The response, once its headers have arrived. A caller that was cancelled may call it again. Raises
        ReplicaFailed (AdapterUnavailable if the replica's middleware gives the reason), AdapterLoadPending or
        InvalidRequest.
        """
        if self._connection is None:
            raise ReplicaFailed("The replica refused the request.")
        try:
            response = self._response = await self._connection.response()
        except EngineLost as error:
            raise _unreachable(self._replica, error) from error
        if response.status == 200:
            return response
        try:
            raw = await response.read(_ERROR_BYTES_MAX)
        except EngineLost:
            raw = b""
        finally:
            self.close()
        raise _refusal(self._replica, response, raw)

    def close(self) -> None:
        """Release the connection. If the response has not been read to its end, the connection is dropped."""
        connection, self._connection = self._connection, None
        if self._response is not None:
            self._response.close()
        elif connection is not None:
            connection.drop()


def _unreachable(replica: ReplicaStatus, error: OSError) -> ReplicaFailed:
    _log.warning("replica unreachable", replica=replica.id, error=repr(error))
    return ReplicaFailed(f"The replica could not be reached ({type(error).__name__}).")


def _refusal(replica: ReplicaStatus, response: EngineResponse, raw: bytes) -> AppError:
    """The error for a status other than 200."""
    reported = _error(raw)
    if response.status == 503 and reported.code == "adapter_loading":
        return AdapterLoadPending(_seconds(response.headers), _bounded(reported.eta_s))
    # Not its text: an engine's validation errors can quote the prompt.
    _log.warning(
        "request refused by replica", replica=replica.id, status=response.status, code=reported.code, bytes=len(raw)
    )
    if response.status == 503 and reported.code in _LOAD_FAILURES:
        return AdapterUnavailable(
            _LOAD_FAILURES[reported.code], code=reported.code, retry_after_s=_seconds(response.headers)
        )
    # vLLM answers 404 for a name that no resolver knows, and 400 for an adapter it could not load.
    if response.status == 404 or (response.status == 400 and b"LoRA adapter" in raw):
        failed = ReplicaFailed("The adapter could not be loaded.", code="adapter_unavailable")
        failed.about_adapter = True
        return failed
    if response.status in (400, 422):
        return InvalidRequest(
            "The engine refused this combination of parameters; check `response_format`, `tools` and sampling.",
            code="request_refused",
        )
    return ReplicaFailed("The replica failed.")


def _error(raw: bytes) -> _Error:
    """The error in a body as the replica's middleware writes it; its code is "" for any other body."""
    try:
        return msgspec.json.decode(raw, type=_ErrorBody).error
    except msgspec.MsgspecError:
        return _Error("")


def _bounded(eta_s: float | None) -> float | None:
    return None if eta_s is None else min(max(eta_s, 0.0), _RETRY_MAX_S)


def _seconds(headers: Mapping[str, str]) -> float:
    """A ``Retry-After`` header in seconds, within bounds; the minimum for a missing or invalid one."""
    value = headers.get("retry-after", "")
    return min(max(float(value) if value.isdecimal() else 0.0, _RETRY_MIN_S), _RETRY_MAX_S)
