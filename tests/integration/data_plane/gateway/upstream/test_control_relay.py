"""What a gateway relays to the control plane: bodies of any size as bytes, answers as they come, and only as many at
once as it may. Without the control plane, inference goes on.
"""

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tenora.stack.program import free_port
from tests.conftest import wait_until
from tests.integration.data_plane.conftest import chat

PORT = free_port()
LARGE = b"0123456789abcdef" * 65_536 * 3  # 3 MiB
IDLE_S = 1.0


class ControlPlane(BaseHTTPRequestHandler):
    """Answers with a digest of what it got, and ``/v1/files/address`` with the caller's address. ``/v1/files/held``
    says ``arrived`` and waits for ``released``; ``/v1/files/silent`` is silent in the middle of its answer.
    """

    protocol_version = "HTTP/1.1"
    arrived, released = threading.Semaphore(0), threading.Event()

    def _answer(self) -> None:
        body = self._body()
        if self.path == "/v1/files/held":
            self.arrived.release()
            self.released.wait(20)
        content = hashlib.sha256(body).hexdigest().encode()
        if self.path.partition("?")[0].endswith("/content"):
            content = LARGE * 20 if "huge" in self.path else LARGE
        elif self.path == "/v1/files/address":
            content = self.headers["x-forwarded-for"].encode()
        self.send_response(418 if self.path.endswith("/teapot") else 200)
        self.send_header("connection", "close")  # so that no connection outlives its server
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(content)))
        self.send_header("x-asked", f"{self.command} {self.path} {self.headers.get('x-secret', '')}")
        self.send_header("content-disposition", f"{self.command} {self.path}")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if self.path == "/v1/files/silent":
                self.wfile.write(content[:10])
                self.released.wait(20)
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the server's names

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def gateway_settings():
    return {
        "control_url": f"http://127.0.0.1:{PORT}",
        "relays_max": 4,
        "relay_body_max_bytes": 4 << 20,
        "relay_idle_s": IDLE_S,
    }


@pytest.fixture
def control_plane() -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", PORT), ControlPlane)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield
    ControlPlane.released.set()
    server.shutdown()
    server.server_close()
    ControlPlane.released.clear()


@pytest.fixture
def http(stack, tenant) -> Iterator[httpx.Client]:
    tenant.sdk()
    headers = {"authorization": f"Bearer {tenant.key}", "x-secret": "not relayed"}
    with httpx.Client(base_url=stack.gateway.url, headers=headers, timeout=30) as client:
        yield client


@pytest.mark.usefixtures("control_plane")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_relayed_as_it_is(http, chunked):
    pieces = (LARGE[at : at + 100_000] for at in range(0, len(LARGE), 100_000))
    answer = http.post("/v1/files", content=pieces if chunked else LARGE)
    assert answer.status_code == 200
    assert answer.text == hashlib.sha256(LARGE).hexdigest()
    assert answer.headers["x-request-id"].startswith("req_")
    assert "x-asked" not in answer.headers


@pytest.mark.usefixtures("control_plane")
def test_path_query_status_and_content_are_relayed(http):
    answer = http.get("/v1/files/file_1/content?x=%20y")
    assert answer.content == LARGE
    assert answer.headers["content-disposition"] == "GET /v1/files/file_1/content?x=%20y"
    assert http.delete("/v1/files/file_1").headers["content-disposition"] == "DELETE /v1/files/file_1"
    assert http.get("/v1/batches/batch_1/teapot").status_code == 418
    assert http.post("/v1/batch", json={}).status_code == 200


@pytest.mark.usefixtures("control_plane")
@pytest.mark.parametrize("path", ["/v1/files/../../api/v1/admin/tenants", "/v1/files/a%2fb/c/d", "/v1/batches/x/y/z"])
def test_no_other_path_is_relayed(http, path):
    answer = http.request("GET", httpx.URL(str(http.base_url).rstrip("/") + path))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_url"


@pytest.mark.usefixtures("control_plane")
def test_a_larger_body_and_an_unknown_key_are_refused_by_the_gateway(http):
    answer = http.post("/v1/files", content=b"x" * (5 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    refused = http.get("/v1/files", headers={"authorization": "Bearer tnr_live_none"})
    assert refused.status_code == 401


@pytest.mark.usefixtures("control_plane")
def test_the_control_plane_gets_the_callers_address(http):
    assert http.get("/v1/files/address", headers={"x-forwarded-for": "203.0.113.9"}).text == "127.0.0.1"


@pytest.mark.usefixtures("control_plane")
def test_only_as_many_requests_as_the_limit_are_relayed_at_once_and_of_one_tenant_half(http, stack):
    others = [stack.tenant() for _ in range(2)]
    with contextlib.ExitStack() as up:
        clients = [http]
        for other in others:
            other.sdk()
            headers = {"authorization": f"Bearer {other.key}"}
            clients.append(up.enter_context(httpx.Client(base_url=stack.gateway.url, headers=headers, timeout=30)))
        held = []

        def hold(client: httpx.Client) -> None:
            held.append(threading.Thread(target=client.get, args=("/v1/files/held",)))
            held[-1].start()
            assert ControlPlane.arrived.acquire(timeout=20)

        hold(clients[0])
        hold(clients[0])
        refused = clients[0].get("/v1/files")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        hold(clients[1])
        hold(clients[1])
        assert clients[2].get("/v1/files").status_code == 503
        ControlPlane.released.set()
        for thread in held:
            thread.join()
        assert [client.get("/v1/files").status_code for client in clients] == [200, 200, 200]


@pytest.mark.usefixtures("control_plane")
def test_a_control_plane_that_falls_silent_in_an_answer_ends_it(http):
    began = time.monotonic()
    with pytest.raises(httpx.HTTPError):
        http.get("/v1/files/silent")
    assert time.monotonic() - began < 10 * IDLE_S


@pytest.mark.usefixtures("control_plane")
def test_readers_that_take_nothing_lose_their_answers(http, tenant):
    request = f"GET /v1/files/huge/content HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {tenant.key}\r\n\r\n"
    with contextlib.ExitStack() as up:
        for _ in range(2):
            slow = up.enter_context(socket.create_connection((http.base_url.host, http.base_url.port)))
            slow.sendall(request.encode())
            slow.recv(1)
        assert http.get("/v1/files").status_code == 503
        wait_until(lambda: http.get("/v1/files").status_code == 200, timeout_s=20 * IDLE_S)


def test_without_the_control_plane_files_are_unavailable_and_inference_goes_on(http, tenant):
    answer = http.get("/v1/batches")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "control_plane_unavailable")
    assert chat(tenant.sdk()).choices
