"""The gateway's paths, as raw ASGI: each hands over to the lifecycle and turns its failures into OpenAI's answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec
import structlog
from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import HTTPScope, Receive, Scope, Send

from core.errors import AppError, NotFound
from core.ids import new_id
from data_plane.gateway import metrics
from data_plane.gateway.body import Kind
from data_plane.gateway.catalog import describe, describe_one
from data_plane.gateway.client import Client, ClientGone
from data_plane.gateway.errors import Headers, InternalError, MethodNotAllowed, error_body, error_headers
from data_plane.gateway.lifecycle import Lifecycle
from data_plane.gateway.replicas import Replicas
from data_plane.gateway.snapshot import Snapshot

_log = structlog.get_logger()
Serve = Callable[[Client, str], Awaitable[None]]
"""Answers one request, given its channel and its id. Raises AppError before the response has begun."""


def build(lifecycle: Lifecycle, snapshot: Snapshot, replicas: Replicas) -> list[ASGIRouteHandler]:
    """Every route handler, over the objects that app.py built."""

    def completions(kind: Kind) -> Serve:
        async def serve(client: Client, request_id: str) -> None:
            await lifecycle.complete(kind, client, request_id)

        return serve

    async def tokenize(client: Client, request_id: str) -> None:
        prepared = await lifecycle.prepare("tokenize", client, request_id)
        context = min(prepared.caller.tenant.limits.context_tokens, prepared.target.base.context_tokens)
        await _json(client, {"count": prepared.prompt_tokens, "max_model_len": context})

    async def models(client: Client, _request_id: str) -> None:
        caller, tables = lifecycle.identify(client)
        await _json(client, {"object": "list", "data": describe(tables, caller.tenant.tenant_id)})

    async def model(client: Client, _request_id: str) -> None:
        caller, tables = lifecycle.identify(client)
        await _json(client, describe_one(tables, caller.tenant.tenant_id, client.path.removeprefix("/v1/models/")))

    async def health(client: Client, _request_id: str) -> None:
        await _json(client, {"status": "alive"})

    async def ready(client: Client, _request_id: str) -> None:
        is_ready = snapshot.tables is not None and replicas.reachable
        state = {"ready": is_ready, "snapshot": snapshot.tables is not None, "redis": replicas.reachable}
        await _json(client, {**state, "generation": snapshot.generation}, status=200 if is_ready else 503)

    async def nothing(client: Client, _request_id: str) -> None:
        raise NotFound(f"There is nothing at {client.path[:128]}.", code="unknown_url")

    return [
        _route("/v1/chat/completions", "POST", completions("chat")),
        _route("/v1/completions", "POST", completions("completion")),
        _route("/v1/tokenize", "POST", tokenize),
        _route("/v1/models", "GET", models),
        _route("/v1/models/{model:path}", "GET", model),
        _route("/healthz", "GET", health),
        _route("/readyz", "GET", ready),
        _route(["/", "/{rest:path}"], None, nothing, label="unknown"),
    ]


def _route(path: str | list[str], method: str | None, serve: Serve, label: str | None = None) -> ASGIRouteHandler:
    """A raw ASGI handler that answers every failure in OpenAI's shape, with our request id on everything."""
    name = label or str(path)

    @asgi(path)
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_id("req")
        client = Client(cast("HTTPScope", scope), receive, send, [(b"x-request-id", request_id.encode())])
        try:
            _check_method(client, method)
            await serve(client, request_id)
        except AppError as error:
            await _fail(client, error)
        except ClientGone:
            client.status = 499
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("request failed", request=request_id, path=name)
            if client.started:
                raise  # the server cuts the connection: the caller must not take this for the end
            await _fail(client, InternalError("Something went wrong here; it has been logged under the request id."))
        finally:
            metrics.requests.labels(name, str(client.status)).inc()

    return handle


def _check_method(client: Client, method: str | None) -> None:
    if method is not None and client.method != method:
        raise MethodNotAllowed(f"Use {method} here.")


async def _json(client: Client, value: object, *, status: int = 200) -> None:
    await client.respond(status, msgspec.json.encode(value), [])


async def _fail(client: Client, error: AppError) -> None:
    metrics.refusals.labels(error.code).inc()
    headers: Headers = error_headers(error)
    await client.respond(error.status, error_body(error), headers)
