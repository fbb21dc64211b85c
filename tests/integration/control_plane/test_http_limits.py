"""Clients that send too much, too slowly, or too often at once harm no other client of the control plane."""

import contextlib
import socket

import pytest

from control_plane.settings import WebSettings
from core.api_keys import mint_key
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import Api, control_settings, running_api

HALF_SENT = 200


@pytest.fixture
def start(postgres_settings, redis_settings, s3_settings):
    """Starts a server with these limits."""
    with contextlib.ExitStack() as servers:

        def running(**limits: object) -> Api:
            web = WebSettings(
                control_port=0, acknowledge_wait_ms=0, **{"control_connections_per_address_max": None, **limits}
            )
            return servers.enter_context(
                running_api(control_settings(postgres_settings, redis_settings, s3_settings, web=web))
            )

        yield running


def connect(api: Api) -> socket.socket:
    host, port = api.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def response(connection: socket.socket) -> bytes:
    """The bytes received until the server disconnects."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def half_sent(api: Api, key: str) -> socket.socket:
    connection = connect(api)
    connection.sendall(
        f"POST /api/v1/adapters HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        "content-type: application/json\r\ncontent-length: 10\r\n\r\n{".encode()
    )
    return connection


def test_an_endless_header_ends_the_connection(start):
    api = start(control_headers_max_bytes=4096)
    with connect(api) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nx: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(b"a" * 65_536)
        received = response(connection)
    assert received == b"" or (b" 431 " in received and b"headers_too_large" in received)
    assert api.anyone.get("/livez").status_code == 200


def test_what_does_not_arrive_in_time_ends_the_connection(start):
    api = start(control_headers_s=0.5, control_body_s=0.5)
    tenant = api.tenant()
    with connect(api) as unused, connect(api) as headers, half_sent(api, tenant.key) as body:
        headers.sendall(b"GET /livez HTTP/1.1\r\n")
        assert response(unused) == b""
        received = response(headers)
        assert b" 408 " in received
        assert b'"code":"request_timeout"' in received
        assert b"application/problem+json" in received
        received = response(body)
        assert b" 408 " in received
        assert b"The body did not arrive within 0.5 s." in received


def test_half_sent_requests_of_one_tenant_leave_other_tenants_and_admins_served(start):
    api = start(control_body_s=300, control_tenant_requests_max=8)
    tenant, other = api.tenant(), api.tenant()
    with contextlib.ExitStack() as opened:
        held = [opened.enter_context(half_sent(api, tenant.key)) for _ in range(HALF_SENT)]
        refused = wait_until(lambda: _answers(held), timeout_s=60, what="the requests above the limit to be refused")
        assert all(b" 429 " in each and b"too_many_concurrent_requests" in each for each in refused)
        assert tenant.http.get("/api/v1/api-keys").status_code == 429
        assert other.http.get("/api/v1/api-keys").status_code == 200
        assert api.admin.get("/api/v1/admin/plans").status_code == 200
    wait_until(lambda: tenant.http.get("/api/v1/api-keys").status_code == 200, what="the slots to be free again")


def test_half_sent_requests_without_a_valid_key_are_refused_before_their_bodies(start):
    api = start(control_body_s=300, control_requests_max=20)
    with contextlib.ExitStack() as opened:
        held = [opened.enter_context(half_sent(api, mint_key("live"))) for _ in range(HALF_SENT)]
        refused = wait_until(lambda: _answers(held), timeout_s=60, what="all of them to be refused")
        assert all(b" 401 " in each or b" 503 " in each for each in refused)
        assert api.tenant().http.get("/api/v1/api-keys").status_code == 200
        assert api.admin.get("/api/v1/admin/plans").status_code == 200


def test_an_address_that_floods_is_refused_before_its_key_is_looked_up(start):
    api = start(control_address_requests_per_minute=30)
    answers = [api.anyone.get("/api/v1/me") for _ in range(60)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert refused[0].json()["code"] == "too_many_requests"
    assert refused[0].headers["content-type"] == "application/problem+json"


def _answers(held: list[socket.socket]) -> list[bytes]:
    """The answers so far, once all requests but those that hold a slot have one."""
    found = []
    for connection in held:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            found.append(connection.recv(4096, socket.MSG_PEEK))
    return found if len(found) >= HALF_SENT - 8 else []


def test_connections_of_one_address_are_limited(start):
    api = start(control_connections_per_address_max=4)
    with contextlib.ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(connect(api))
        with connect(api) as fifth:
            fifth.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            received = response(fifth)
        assert b" 503 " in received
        assert b'"code":"overloaded"' in received
        assert b"retry-after: 1" in received
    wait_until(lambda: api.anyone.get("/livez").status_code == 200, what="connections to be free again")


def test_a_body_survives_an_offer_to_upgrade(shared_api):
    body = b'{"name": "acme", "plan": "none"}'
    with connect(shared_api) as connection:
        connection.sendall(
            b"POST /api/v1/admin/tenants HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings, close\r\n"
            b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\ncontent-type: application/json\r\nauthorization: Bearer "
            + shared_api.admin_secret.encode() + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )  # fmt: skip
        assert b"none" in response(connection)  # it read the body, whose plan does not exist
