"""The engine's door lets through only known routes, and only with the engine's key."""

import json

import pytest

from data_plane.engine.front import ABORT_PATH, EngineDoor

KEY = "engine-key-of-tests"


class Engine:
    def __init__(self):
        self.aborted = []
        self.served = []

    async def abort(self, request_ids):
        self.aborted += request_ids


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def door(engine, monkeypatch):
    monkeypatch.setenv("TENORA_ENGINE_KEY", KEY)

    async def server(scope, receive, send):
        engine.served.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return EngineDoor(server)


async def ask(door, engine, method, path, *, key=KEY, body=b""):
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    class State:
        engine_client = engine

    app = type("App", (), {"state": State})
    headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
    await door({"type": "http", "method": method, "path": path, "headers": headers, "app": app}, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_generation_needs_the_key(door, engine, path):
    assert await ask(door, engine, "POST", path, key=None) == 401
    assert await ask(door, engine, "POST", path, key="wrong") == 401
    assert engine.served == []
    assert await ask(door, engine, "POST", path) == 200
    assert engine.served == [path]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
        ("POST", "/adapters"),
        ("POST", "/invocations"),
        ("POST", "/tokenize"),
        ("POST", "/inference/v1/generate"),
        ("POST", "/pause"),
        ("GET", "/docs"),
        ("GET", "/v1/chat/completions"),
        ("POST", "//v1/chat/completions"),
        ("POST", "/v1/chat/completions/"),
    ],
)
async def test_every_other_route_is_closed_even_with_the_key(door, engine, method, path):
    assert await ask(door, engine, method, path) == 404
    assert engine.served == []


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_are_open(door, engine, path):
    assert await ask(door, engine, "GET", path, key=None) == 200


async def test_abort_reaches_the_engine(door, engine):
    body = json.dumps({"request_ids": ["chatcmpl-req_1"]}).encode()
    assert await ask(door, engine, "POST", ABORT_PATH, body=body) == 200
    assert engine.aborted == ["chatcmpl-req_1"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"request_ids": "all"}', b'{"request_ids": []}', b'{"request_ids": [1]}', b"x" * 20_000],
)
async def test_a_malformed_abort_is_refused(door, engine, body):
    assert await ask(door, engine, "POST", ABORT_PATH, body=body) == 400
    assert engine.aborted == []


async def test_websockets_are_closed(door, engine):
    sent = []

    async def send(message):
        sent.append(message)

    await door({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)
    assert sent[0]["status"] == 404
