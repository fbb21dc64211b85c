"""Unexpected HTTP traffic: too much, too early, or when no connection is left."""

import contextlib
import json
import socket
import threading
import time

import httpx
import openai
import pytest

from tests.conftest import wait_until
from tests.corpus.requests.bodies import CHAT
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, assert_settled, chat, slowly

RESET = b"\1\0\0\0\0\0\0\0"
PAGE = "https://app.example.com"


@pytest.fixture(scope="module")
def gateway_settings():
    return {"gateway_cors_origins": PAGE, "tenant_preparing_max": 24, "tokenize_tenant_waiting_max": 8}


@pytest.fixture(scope="module")
def narrow(module_stack):
    """A gateway with few connections to callers and little room for an answer."""
    settings = {
        **BRISK, "breaker_failures": 1, "gateway_connections_max": 4,
        "response_max_bytes": 2048,
    }  # fmt: skip
    with processes.gateway(module_stack.folder, module_stack.redis_url, "narrow", **settings) as gateway:
        yield gateway


def connect(gateway) -> socket.socket:
    host, port = gateway.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def head_of(tenant, path: str = "/v1/chat/completions") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {tenant.key}\r\ncontent-type: application/json\r\n"
    ).encode()


def rest(connection: socket.socket) -> bytes:
    """The bytes received until the gateway disconnects."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize(
    ("piece", "keyed"), [(b"y" * 65_536, False), (b"y\r\nx: " * 10_000, True)], ids=["one", "many"]
)
def test_long_trailers_end_the_connection(stack, tenant, piece, keyed):
    tenant.sdk()
    head = head_of(tenant) if keyed else b"GET /livez HTTP/1.1\r\nhost: x\r\n"
    body = json.dumps(CHAT).encode()
    with connect(stack.gateway) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nx: " % (len(body), body))
        with contextlib.suppress(ConnectionError):
            for _ in range(16):
                connection.sendall(piece)
        received = rest(connection)  # a gateway that kept reading would not end the connection
    assert received == b"" or b" 431 " in received or (not keyed and b" 200 " in received)
    assert tenant.events() == []


def test_an_unread_body_ends_the_connection(stack):
    with connect(stack.gateway) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{")
        assert b"connection: close" in rest(connection)
    with connect(stack.gateway) as connection:
        for _ in range(2):
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            assert b"connection: close" not in connection.recv(65536)


def test_a_pipelined_request_does_not_hide_that_the_caller_disconnected(stack, tenant, promised_s):
    slowly(stack)
    tenant.sdk()
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 400}).encode()
    connection = connect(stack.gateway)
    connection.sendall(head_of(tenant) + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert b"200 OK" in connection.recv(4096)
    connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()
    left = time.monotonic()
    event, _ = assert_settled(tenant, "client_gone")
    assert time.monotonic() - left < promised_s(1.5)  # 400 tokens would take eight seconds
    assert event.output_tokens < 100


def test_invalid_http_gets_an_error_in_the_usual_format(stack):
    with connect(stack.gateway) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        head, _, body = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"x-request-id: req_" in head
    assert b"x-should-retry: false" in head
    assert json.loads(body)["error"]["code"] == "malformed_http"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_stream_to_http_1_0_is_its_events_until_the_connection_closes(stack, tenant, path):
    tenant.sdk()
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 5}).encode()
    with connect(stack.gateway) as connection:
        connection.sendall(head_of(tenant, path).replace(b"HTTP/1.1", b"HTTP/1.0"))
        connection.sendall(b"content-length: %d\r\n\r\n" % len(body) + body)
        head, _, events = rest(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert all(event.startswith((b"data: ", b"event: ")) for event in events.removesuffix(b"\n\n").split(b"\n\n"))
    assert_settled(tenant, "done")


def test_a_page_of_a_configured_origin_calls_the_gateway(stack, tenant):
    tenant.sdk()
    url = f"{stack.gateway.url}/v1/chat/completions"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    with httpx.Client(headers={"origin": PAGE}) as page:
        allowed = page.options(url, headers=asked)
        assert (allowed.status_code, allowed.content) == (204, b"")
        assert allowed.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        for body, key, status in [
            (CHAT, tenant.key, 200),
            ({**CHAT, "stream": True}, tenant.key, 200),
            (CHAT, "x", 401),
        ]:
            answer = page.post(url, json=body, headers={"authorization": f"Bearer {key}"})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        other = page.options(url, headers=asked | {"origin": "https://evil.example"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "access-control-allow-origin" not in other.headers


def test_callers_above_the_connection_limit_are_asked_to_retry(narrow):
    with contextlib.ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(connect(narrow))
        time.sleep(0.2)
        response = httpx.get(narrow.url + "/v1/models")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    assert response.headers["retry-after"] == "1"
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["connection"] == "close"
    wait_until(lambda: httpx.get(narrow.url + "/v1/models").status_code == 401, what="connections to be free again")


@pytest.mark.parametrize("n", [1, 2])
def test_an_answer_too_large_to_pass_on_is_billed_and_not_retried(stack, tenant, narrow, n):
    slowly(stack, token_interval_s=0)
    client = tenant.sdk(narrow.url)
    before = len(stack.witness.received())
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        chat(client, max_tokens=400, n=n)
    assert refused.value.code == "answer_too_large"
    event, _ = assert_settled(tenant, "done")
    assert event.output_tokens == 400 * n
    assert len(stack.witness.received()) == before + 1
    assert narrow.metric("tenora_gateway_open_circuits") == 0
    assert chat(client, max_tokens=5).choices


def test_tokens_delivered_before_a_defect_are_billed(stack, tenant, narrow):
    """An unforeseen event that the translation to Anthropic's format cannot handle."""
    slowly(stack, error_after=5, error='{"choices":[{"index":0,"delta":7,"finish_reason":null}]}')
    tenant.sdk(narrow.url)
    body = {"model": "tiny-chat", "max_tokens": 400, "stream": True, "messages": CHAT["messages"]}
    with contextlib.suppress(httpx.RemoteProtocolError):
        httpx.post(narrow.url + "/v1/messages", json=body, headers={"x-api-key": tenant.key})
    event, _ = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 5


def test_a_flood_of_long_token_counts_does_not_stop_another_tenant(stack):
    flooder, quiet = stack.tenant(), stack.tenant()
    flooder.sdk()
    client = quiet.sdk()
    over, long = threading.Event(), json.dumps({"model": "tiny-chat", "prompt": "capital " * 60_000}).encode()
    statuses: list[int] = []

    def flood() -> None:
        headers = {"authorization": f"Bearer {flooder.key}", "content-type": "application/json"}
        with httpx.Client(base_url=stack.gateway.url, headers=headers, timeout=60) as http:
            while not over.is_set():
                try:
                    statuses.append(http.post("/v1/tokenize", content=long).status_code)
                except httpx.TransportError:
                    continue  # refused before its body was read: the connection ends while the caller still writes

    threads = [threading.Thread(target=flood) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: {200, 429} <= set(statuses), what="more than the gateway counts at a time")
        for _ in range(3):
            assert chat(client, "capital " * 1000, timeout=10).choices
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200, 429}
