"""Connections to providers lead to checked addresses only, keys open with the right secret, and a ceiling holds
what requests may cost.
"""

import asyncio
import socket
import ssl
import time
from contextlib import asynccontextmanager

import httpcore
import pytest
from redis.exceptions import ConnectionError as RedisLost

from core.errors import AppError
from data_plane.gateway.providers.client import ProviderClient, _CheckedAddresses, _host_header
from data_plane.gateway.providers.errors import ProviderFailed
from data_plane.gateway.providers.formats import format_of
from data_plane.gateway.providers.meter import ProviderMeter
from data_plane.gateway.providers.spending import ProviderSpending
from data_plane.gateway.state.redis_clock import RedisClock
from data_plane.gateway.upstream.engine_client import LocalShortage
from data_plane.gateway.upstream.relay import RetryBudget
from tests.fixtures.gateway.requests import settings_with
from tests.fixtures.providers.certificates import certificate
from tests.fixtures.providers.routes import SECRET, provider_route

PRIVATE = ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00::1")


@pytest.mark.parametrize("address", PRIVATE)
async def test_a_private_address_is_not_connected_to(address):
    with pytest.raises(httpcore.ConnectError, match="not public"):
        await _CheckedAddresses(frozenset({"10.0.0.1:8000"})).connect_tcp(address, 443, 1)


async def test_a_name_with_one_private_address_is_not_connected_to(monkeypatch):
    def lookup(_host, port, **_given):
        return [(None, None, None, "", (address, port)) for address in ("93.184.216.34", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(httpcore.ConnectError, match="not public"):
        await _CheckedAddresses(frozenset()).connect_tcp("rebound.example.com", 443, 1)


async def test_a_host_that_the_operator_names_is_connected_to():
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        stream = await _CheckedAddresses(frozenset({f"127.0.0.1:{port}"})).connect_tcp("127.0.0.1", port, 1)
        await stream.aclose()


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("https://api.example.com/v1", "api.example.com"),
        ("https://api.example.com:8443/v1", "api.example.com:8443"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
    ],
)
def test_the_host_header_is_the_urls_own(url, header):
    assert _host_header(httpcore.URL(url)) == header


class Counters:
    """The counting of Redis."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        self.expiring: list[str] = []
        self.lost = False

    @property
    def taken(self) -> int:
        return sum(self.counted.values())

    async def call(self, command, key, *arguments, due):
        if self.lost:
            raise RedisLost
        if command == "INCRBY":
            self.counted[key] = self.counted.get(key, 0) + arguments[0]
        else:
            self.expiring.append(key)
        return self.counted[key]


def spending_of(counters: Counters) -> ProviderSpending:
    return ProviderSpending(counters, RedisClock(), deadline_s=1)


@asynccontextmanager
async def sending(*answers: bytes, tls: ssl.SSLContext | None = None, serves: ssl.SSLContext | None = None, **changes):
    """A request to a server that gives these answers and then closes its connections, and what its provider counted."""
    left, counters = list(answers), Counters()

    async def answer(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(left.pop(0) if left else b"")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serves)
    host = f"localhost:{server.sockets[0].getsockname()[1]}"
    settings = settings_with(
        provider_secret=changes.pop("secret", SECRET), provider_inward_hosts=changes.pop("inward", host)
    )
    retries = RetryBudget(percent=0, burst=changes.pop("burst", 5))
    url = f"{'http' if serves is None else 'https'}://{host}/v1"
    async with server, ProviderClient(settings, retries, spending_of(counters), tls) as client:
        provider = provider_route(url=url, spend_nanos_per_month=1000, **changes)
        wire = format_of(provider)(
            ProviderMeter(prompt_tokens=1, output_max=1), response_id="r", engine_name="m", event_max_bytes=9,
            bytes_max=9,
        )  # fmt: skip
        yield client.request(provider, wire, b"{}", most_nanos=60), counters


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Busy\r\nretry-after-ms: 1\r\ncontent-length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\n{}"


async def failure(request) -> AppError:
    with pytest.raises(AppError) as failed:
        await request.response()
    await request.settle(None)
    return failed.value


async def test_a_key_of_another_secret_fails_before_anything_is_sent():
    async with sending(OK, secret="another secret of the tests") as (request, counters):
        assert (await failure(request)).code == "provider_key_unreadable"
        assert (request.was_sent, counters.taken) == (False, 0)


async def test_a_busy_provider_is_asked_again_and_only_its_answer_costs():
    async with sending(BUSY, OK) as (request, counters):
        await request.response()
        assert counters.taken == 60
        await request.settle(25)
        await request.settle(None)
        assert counters.taken == 25
        request.close()


async def test_without_a_budget_for_retries_a_busy_provider_is_asked_once():
    async with sending(BUSY, OK, burst=0) as (request, counters):
        assert (await failure(request)).code == "provider_busy"
        assert counters.taken == 0


async def test_what_a_provider_refuses_costs_nothing():
    async with sending(REFUSED) as (request, counters):
        assert (await failure(request)).code == "request_refused"
        assert (request.was_sent, counters.taken) == (False, 0)


async def test_a_provider_that_breaks_off_once_it_has_the_request_may_have_cost_the_most_each_time():
    async with sending(b"", b"") as (request, counters):
        assert (await failure(request)).code == "provider_unreachable"
        assert (request.was_sent, counters.taken) == (True, 120)


async def test_a_provider_that_cannot_be_reached_costs_nothing():
    async with sending(OK, inward="127.0.0.1:9") as (request, counters):
        assert (await failure(request)).code == "provider_unreachable"
        assert (request.was_sent, counters.taken) == (False, 0)


async def test_http_is_for_hosts_that_the_operator_names():
    client = ProviderClient(
        settings_with(provider_secret=SECRET), RetryBudget(percent=0, burst=5), spending_of(Counters())
    )
    with pytest.raises(ProviderFailed) as refused:
        await client.send(provider_route(url="http://93.184.216.34/v1"), b"{}", lambda: None)
    assert (refused.value.code, refused.value.may_pass) == ("provider_unreachable", False)


@pytest.mark.parametrize(
    ("name", "is_trusted", "is_answered"),
    [("localhost", True, True), ("localhost", False, False), ("a.b", True, False)],
)
async def test_a_certificate_must_be_trusted_and_name_the_host(tmp_path, name, is_trusted, is_answered):
    path = certificate(tmp_path, name)
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(path)
    tls = ssl.create_default_context(cafile=path if is_trusted else None)
    async with sending(OK, OK, tls=tls, serves=serves) as (request, counters):
        if is_answered:
            assert (await request.response()).headers["content-length"] == "2"
            request.close()
        else:
            assert (await failure(request)).code == "provider_unreachable"
            assert counters.taken == 0


async def test_each_provider_has_connections_of_its_own():
    client = ProviderClient(
        settings_with(provider_secret=SECRET), RetryBudget(percent=0, burst=0), spending_of(Counters())
    )
    assert client._pool("prv_1") is client._pool("prv_1") is not client._pool("prv_2")


async def test_a_slow_name_server_holds_no_threads_of_others(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_more: time.sleep(0.3))
    backend = _CheckedAddresses(frozenset())
    slow = [asyncio.create_task(backend.connect_tcp("slow.example.com", 443, 0.05)) for _ in range(100)]
    await asyncio.sleep(0)
    begun = time.monotonic()
    await asyncio.to_thread(int)
    assert time.monotonic() - begun < 0.2
    failed = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(error) for error in failed} == {httpcore.ConnectError}
    backend.close()


async def test_a_ceiling_holds_what_requests_may_cost():
    counters = Counters()
    spending, provider = spending_of(counters), provider_route(spend_nanos_per_month=100)
    key = await spending.take(provider, 60)
    with pytest.raises(LocalShortage) as refused:
        await spending.take(provider, 60)
    assert refused.value.code == "provider_ceiling_reached"
    await spending.give_back(key, 35)
    await spending.take(provider, 60)
    assert (counters.counted, counters.expiring) == ({key: 85}, [key])


async def test_without_redis_a_ceiling_lets_nothing_pass():
    counters = Counters()
    counters.lost = True
    with pytest.raises(LocalShortage):
        await spending_of(counters).take(provider_route(spend_nanos_per_month=100), 60)
    assert await spending_of(counters).take(provider_route(), 60) == ""
