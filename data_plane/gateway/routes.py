"""The gateway's routes, as raw ASGI: each calls the lifecycle and turns errors into responses.

http_protocol.py passes every request to ``handle`` without the framework's router. A path outside the table is a 404.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec
import structlog
from litestar.types import HTTPScope, Receive, Scope, Send

from core.errors import AppError, NotFound
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.api.anthropic_connection import AnthropicClient
from data_plane.gateway.api.anthropic_request import parse_messages
from data_plane.gateway.api.client_connection import CLIENT_GONE, Client, ClientGone
from data_plane.gateway.api.cors import Cors
from data_plane.gateway.api.embeddings import parse_embeddings
from data_plane.gateway.api.model_catalog import describe, describe_one
from data_plane.gateway.api.openai_request import Kind, Parse, parse_call
from data_plane.gateway.drain_notice import DrainNotice
from data_plane.gateway.errors import Headers, InternalError, MethodNotAllowed
from data_plane.gateway.quota.quota_status import QuotaReader
from data_plane.gateway.request.lifecycle import Lifecycle
from data_plane.gateway.request.preparation import Preparation
from data_plane.gateway.request.request_log import RequestLog
from data_plane.gateway.request.trace import Traces
from data_plane.gateway.scheduling.prefetch_hints import ListingHints
from data_plane.gateway.scheduling.replicas import Replicas
from data_plane.gateway.state.heartbeat import Heartbeat
from data_plane.gateway.state.snapshot import Snapshot
from data_plane.gateway.upstream.control_relay import ControlRelay

_log = structlog.get_logger()
_MODELS: Final = "/v1/models/"
_SHOWN_CHARS: Final = 128
_RELAYED: Final = re.compile(r"/v1/(?:(files|batches)(?:/\w{1,64}){0,2}|(batch))", re.ASCII)
"""Paths that the control plane serves."""

Serve = Callable[[Client, str], Awaitable[None]]
"""Answers one request, given its client and its id. Raises AppError before the response has begun."""


@dataclass(frozen=True)
class GatewayReadiness:
    """Whether this process should get requests."""

    snapshot: Snapshot
    heartbeat: Heartbeat
    replicas: Replicas
    drain_notice: DrainNotice

    def not_ready(self) -> str:
        """What this process lacks to serve requests; empty when nothing."""
        if self.drain_notice.given:
            return "it is draining"
        return ", ".join(f"no {name}" for name, is_there in self._needs().items() if not is_there)

    def state(self) -> dict[str, object]:
        """What ``/readyz`` answers."""
        return {**self._needs(), "draining": self.drain_notice.given, "generation": self.snapshot.generation}

    def _needs(self) -> dict[str, bool]:
        return {
            "snapshot": self.snapshot.tables is not None,
            "redis": self.replicas.reachable,
            "current": self.heartbeat.current,
        }


class Routes:
    """Finds the route of a request and answers it. ``records`` get to know how each request has ended."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        preparation: Preparation,
        readiness: GatewayReadiness,
        listing_hints: ListingHints,
        quota: QuotaReader,
        control_relay: ControlRelay,
        cors: Cors,
        records: Sequence[Traces | RequestLog],
    ) -> None:
        self._records = records
        self._cors = cors
        self._lifecycle = lifecycle
        self._preparation = preparation
        self._readiness = readiness
        self._listing_hints = listing_hints
        self._quota = quota
        self._control_relay = control_relay
        self._table: dict[str, tuple[str, Serve]] = {
            "/v1/chat/completions": ("POST", self._completions("chat")),
            "/v1/completions": ("POST", self._completions("completion")),
            "/v1/embeddings": ("POST", self._completions("embedding", parse_embeddings)),
            "/v1/messages": ("POST", self._completions("chat", parse_messages)),
            "/v1/messages/count_tokens": ("POST", self._count_tokens),
            "/v1/tokenize": ("POST", self._tokenize),
            "/v1/models": ("GET", self._list_models),
            "/v1/quota": ("GET", self._show_quota),
            "/livez": ("GET", self._health),
            "/readyz": ("GET", self._ready),
        }

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, as an ASGI application."""
        received = cast("HTTPScope", scope)
        line = self._preparation.line_of(received["headers"])
        request_id = new_id("req") if line is None else line.request_id
        headers = [(b"x-request-id", request_id.encode()), *self._cors.headers(received["headers"])]
        client = client_of(received, receive, send, headers)
        client.line = line
        # The context belongs to this request's task and the tasks that it starts: all their log events carry the id.
        structlog.contextvars.bind_contextvars(request_id=request_id)
        await self._serve(client, request_id)

    async def _serve(self, client: Client, request_id: str) -> None:
        label, serve = self._find(client)
        refused: AppError | None = None
        try:
            await serve(client, request_id)
        except AppError as error:
            refused = error
            await _fail(client, error)
            _drop_traceback(error)
        except ClientGone as gone:
            client.status = CLIENT_GONE
            _drop_traceback(gone)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("request failed", path=label)
            refused = InternalError("The gateway failed; the error is logged under the request id.")
            if client.started:
                raise  # the server closes the connection, so that the caller does not take this for a complete answer
            await _fail(client, refused)
        finally:
            for record in self._records:
                record.ended(client, request_id, label, refused)
            metrics.REQUESTS.labels(label, str(client.status)).inc()

    def _find(self, client: Client) -> tuple[str, Serve]:
        """The route's label for metrics, and its handler."""
        path = client.path
        serve: Serve
        if client.method == "OPTIONS":
            return "preflight", self._preflight
        if path.startswith(_MODELS) and len(path) > len(_MODELS):
            label, method, serve = _MODELS, "GET", self._describe_model
        elif path in self._table:
            label, (method, serve) = path, self._table[path]
        elif relayed := _RELAYED.fullmatch(path):
            return f"/v1/{relayed[1] or relayed[2]}", self._relay
        else:
            return "unknown", self._unknown_path
        return label, serve if client.method == method else _wrong_method(method)

    def _completions(self, kind: Kind, parse: Parse = parse_call) -> Serve:
        async def serve(client: Client, request_id: str) -> None:
            await self._lifecycle.complete(kind, client, request_id, parse)

        return serve

    async def _tokenize(self, client: Client, request_id: str) -> None:
        request = await self._preparation.prepare("tokenize", client, request_id)
        context = min(request.limits.context_tokens, request.target.base.context_tokens)
        await _answer(client, {"count": request.input_tokens, "max_model_len": context})

    async def _count_tokens(self, client: Client, request_id: str) -> None:
        request = await self._preparation.prepare("tokenize", client, request_id, parse_messages)
        await _answer(client, {"input_tokens": request.input_tokens})

    async def _list_models(self, client: Client, _request_id: str) -> None:
        caller, tables = self._preparation.identify(client)
        await _answer(client, client.models(describe(tables, caller)))
        self._listing_hints.record(tables, caller.tenant.tenant_id, caller.key.key_id)

    async def _describe_model(self, client: Client, _request_id: str) -> None:
        caller, tables = self._preparation.identify(client)
        await _answer(client, client.model(describe_one(tables, caller, client.path.removeprefix(_MODELS))))

    async def _show_quota(self, client: Client, _request_id: str) -> None:
        caller, _ = self._preparation.identify(client)
        await _answer(client, await self._quota.read(caller))

    async def _relay(self, client: Client, _request_id: str) -> None:
        caller, _ = self._preparation.identify(client)  # so that only valid keys reach the control plane
        await self._control_relay.relay(client, caller.tenant.tenant_id)

    async def _preflight(self, client: Client, _request_id: str) -> None:
        await client.start(204, self._cors.preflight(client.request_headers))
        await client.finish(b"")

    async def _health(self, client: Client, _request_id: str) -> None:
        await _answer(client, {"status": "alive"})

    async def _ready(self, client: Client, _request_id: str) -> None:
        ready = not self._readiness.not_ready()
        await _answer(client, {"ready": ready, **self._readiness.state()}, status=200 if ready else 503)

    async def _unknown_path(self, client: Client, _request_id: str) -> None:
        raise NotFound(
            f"No route matches the path {client.path[:_SHOWN_CHARS]}. Use /v1/chat/completions, /v1/completions, "
            "/v1/embeddings, /v1/messages or /v1/models.",
            code="unknown_url",
        )


def client_of(scope: HTTPScope, receive: Receive, send: Send, headers: Headers) -> Client:
    """The client of a request, which answers in the format of the API that it speaks, with these headers."""
    client_type = AnthropicClient if AnthropicClient.speaks(scope) else Client
    return client_type(scope, receive, send, headers)


def _drop_traceback(error: BaseException | None) -> None:
    """Drop an error's tracebacks: their frames refer to the whole request, and some to the error, which is a cycle."""
    while error is not None:
        error.__traceback__, error = None, error.__context__


def _wrong_method(method: str) -> Serve:
    async def refuse(_client: Client, _request_id: str) -> None:
        raise MethodNotAllowed(f"This path accepts only {method}.")

    return refuse


async def _answer(client: Client, value: object, *, status: int = 200) -> None:
    await client.respond(status, msgspec.json.encode(value), [])


async def _fail(client: Client, error: AppError) -> None:
    metrics.REFUSALS.labels(error.code).inc()
    await client.fail(error)
