"""Invalid input at the gateway gets a clear error in OpenAI's shape; none of it is billed or reaches an engine."""

import ast
import contextlib
import socket
import time

import httpx
import pytest

from core import api_keys, redis_keys
from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.corpus.requests.http_requests import ELSEWHERE, ITEMS, JSON, NOT_APPLICABLE, PATHS, WIRE
from tests.fixtures import processes
from tests.fixtures.faults.tcp_proxy import FaultsProxy
from tests.integration.data_plane.conftest import BRISK, Stack, chat


@pytest.fixture(scope="module")
def gateway_settings():
    return {"schema_compile_s": 2}


@pytest.fixture(scope="module")
def proxied():
    return True


@pytest.fixture(scope="module")
def line(module_stack):
    """The only route from gateways to the engine. It also counts requests that the witness would not journal."""
    return module_stack.proxies["rep_one"]


def traces(stack: Stack, line: FaultsProxy) -> dict[str, object]:
    """The traces of all tenants' requests: on the way to the engine, in the engine and on bills."""
    return {
        "connections to the engine": line.accepted,
        "bytes to the engine": line.received_bytes,
        "requests in the engine": len(stack.witness.received()),
        "usage events": len(stack.events()),
        "tenants who used anything": len(stack.client.keys(redis_keys.tenant_quota("*"))),
    }


@pytest.fixture(scope="module")
def only_good_request(module_stack, line):
    """One good request, all of whose traces must be visible. At the end there are no others, even late."""
    before = traces(module_stack, line)
    tenant = module_stack.tenant()
    chat(tenant.sdk(), max_tokens=1)
    tenant.event()
    wait_until(tenant.holds_nothing)
    after = traces(module_stack, line)
    assert [name for name in before if after[name] == before[name]] == []
    yield
    assert traces(module_stack, line) == after


@pytest.fixture
def http(stack, tenant):
    """A client with a good key that the gateway knows."""
    tenant.sdk()
    headers = {"Authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=stack.gateway.url, headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def bare():
    """A client that adds no headers."""
    with httpx.Client(timeout=20) as client:
        yield client


@pytest.fixture
def credentials(stack, tenant) -> dict[str, str]:
    """The keys that the corpus names, known to the gateway."""
    tenant.sdk()
    suspended = stack.publisher.key(stack.publisher.tenant(status="suspended"))
    reader = stack.publisher.key(stack.publisher.tenant(), ("usage:read",))
    revoked = stack.publisher.key(tenant.id)
    stack.publisher.revoke(revoked)
    url = stack.gateway.url + "/v1/models"
    for key in (suspended, reader):
        headers = {"Authorization": f"Bearer {key}"}
        wait_until(lambda headers=headers: httpx.get(url, headers=headers).status_code == 403)
    return {"good": tenant.key, "suspended": suspended, "reader": reader, "revoked": revoked}


def error_of(response: httpx.Response) -> dict:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    body = response.json()
    error = body["error"]
    more = {"details"} if "request_id" in body else set()  # Anthropic's
    assert error.keys() == {"message", "type", "param", "code"} | more
    return error


@pytest.fixture(autouse=True)
def _nothing_reached_an_engine(stack, tenant, line, only_good_request):
    before = traces(stack, line)
    yield
    assert traces(stack, line) == before
    assert tenant.events() == []
    assert not any(tenant.quota().values())


def test_every_item_of_the_corpus_is_refused(stack, line, bare, credentials):
    """One test, since hundreds of tests would each wait for a new tenant."""
    other = stack.tenant()
    stack.publisher.adapter(other.id, "secret-bot")
    wrong = []
    for item in ITEMS:
        began, sent = time.monotonic(), (line.accepted, line.received_bytes)
        headers = {name: value.format(**credentials) if "{" in value else value for name, value in item.headers.items()}
        if item.credential:
            credential = item.credential.format(**credentials) if "{" in item.credential else item.credential
            headers["authorization"] = credential
        request = httpx.Request(item.method, stack.gateway.url + item.path, headers=headers, content=item.body or None)
        response = bare.send(request)  # without headers that a client would add
        seen = (response.status_code, item.code, item.param)
        if item.method != "HEAD":
            error = error_of(response)
            seen = (response.status_code, error["code"], error["param"])
            if item.code == "unsupported_parameter" and f"`{item.param}`" not in error["message"]:
                wrong.append((item.row, item.name, error["message"]))
        if seen != (item.status, item.code, item.param) or time.monotonic() - began > 10:
            wrong.append((item.row, item.name, seen))
        if (line.accepted, line.received_bytes) != sent:
            wrong.append((item.row, item.name, f"{line.received_bytes - sent[1]} bytes reached the engine"))
    assert not wrong


def test_every_row_of_the_corpus_table_has_its_items():
    rows = {item.row for item in ITEMS} | {row for row, _ in WIRE} | ELSEWHERE.keys() | NOT_APPLICABLE.keys()
    assert rows - {"F"} == {f"R{n}" for n in range(1, 41)} | {f"A{n}" for n in range(1, 15)}
    for name in (name for names in ELSEWHERE.values() for name in names):
        path, _, function = name.partition("::")
        nodes = ast.parse((processes.ROOT / path).read_text()).body
        tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function.startswith("test_"), name
        assert function in tests, name


def test_a_body_above_its_limit_is_refused_without_a_content_length(http):
    def endless():
        for _ in range(96):
            yield b"a" * 32_768

    try:
        response = http.post("/v1/chat/completions", content=endless(), headers=JSON)
    except httpx.WriteError:
        return  # the gateway closed the connection while the caller was still writing
    assert response.status_code == 413


def test_odd_text_is_served_or_refused_but_never_fails(http):
    for text in ("\0", "e" + "\u0301" * 1000, "\u202e", "🏳️‍🌈" * 50):
        assert http.post("/v1/tokenize", json={"model": "tiny-chat", "prompt": text}).status_code == 200


def test_another_tenants_adapter_is_not_found(stack, tenant, http):
    other = stack.tenant()
    stack.publisher.adapter(other.id, "secret-bot")
    client = other.sdk()
    wait_until(lambda: len(client.models.list().data) == 2)
    answers = []
    for name in ("secret-bot", "absent-bot"):
        for request in (
            http.build_request("POST", "/v1/chat/completions", json={**CHAT, "model": name}),
            http.build_request("GET", f"/v1/models/{name}"),
            http.build_request("POST", "/v1/tokenize", json={"model": name, "prompt": "a"}),
        ):
            response = http.send(request)
            assert response.status_code == 404
            headers = {
                key: value
                for key, value in response.headers.items()
                if key not in ("x-request-id", "date", "server-timing")
            }
            answers.append((headers, response.text.replace(name, "NAME")))
    assert answers[:3] == answers[3:]
    assert "secret-bot" not in http.get("/v1/models").text


def test_a_body_is_not_read_without_a_valid_key(stack):
    headers = {"Authorization": f"Bearer {api_keys.mint_key('live')}"}
    for path in (*PATHS.values(), "/v1/tokenize"):
        response = httpx.post(stack.gateway.url + path, content=b"not json", headers=headers)
        assert (response.status_code, error_of(response)["code"]) == (401, "invalid_api_key")
    assert httpx.get(stack.gateway.url + "/v1/models").status_code == 401


def raw(stack, data: bytes, *, wait_s: float = 5) -> bytes:
    """Send bytes and read until the gateway closes."""
    host, port = stack.gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection:
        received = b""
        with contextlib.suppress(ConnectionError):  # the gateway may refuse before everything is sent
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                received += part
        return received


@pytest.mark.parametrize(("row", "data"), WIRE)
def test_smuggled_and_broken_requests_are_refused_and_disconnected(stack, row, data):
    received = raw(stack, data)
    assert received == b"" or received.startswith(b"HTTP/1.1 4"), row
    assert received.count(b"HTTP/1.1") <= 1


@pytest.fixture(scope="module")
def hasty(module_stack):
    """A gateway with time limits too short for other tests."""
    settings = {**BRISK, "headers_s": 0.5, "body_s": 0.5}
    with processes.gateway(module_stack.folder, module_stack.redis_url, "hasty", **settings) as gateway:
        yield gateway


def test_slow_request_heads_and_bodies_are_cut_off(tenant, hasty):
    tenant.sdk(hasty.url)
    host, port = hasty.url.removeprefix("http://").split(":")
    authorization = f"authorization: Bearer {tenant.key}\r\ncontent-type: application/json\r\n".encode()
    for head in (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + authorization + b"content-length: 100\r\n\r\n{",
    ):
        began = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(head)
            received = b""
            while part := connection.recv(65536):
                received += part
        assert time.monotonic() - began < 3
        assert received == b"" or b"request_timeout" in received
