"""Requests to outside providers over HTTP/1.1 with httpcore: strict TLS, no redirects, no proxies, no cookies, and
connections only to addresses that were checked. It counts no tokens.

Each host is looked up for each connection and every answer is checked, so a name that changes its address (DNS
rebinding) leads nowhere. SNI, certificate and Host header are the URL's own.
"""

import asyncio
import base64
import binascii
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, Self

import httpcore

from core.contracts.routes import ProviderRoute
from core.public_addresses import host_and_port, is_public
from core.sealed_secrets import CannotOpen
from data_plane.gateway import metrics
from data_plane.gateway.api.sse import StreamBroken
from data_plane.gateway.providers import errors
from data_plane.gateway.providers.errors import ProviderFailed
from data_plane.gateway.providers.formats import format_of
from data_plane.gateway.providers.spending import ProviderSpending
from data_plane.gateway.providers.wire_format import WireFormat
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.upstream.engine_client import LocalShortage
from data_plane.gateway.upstream.relay import RetryBudget

_ADDRESSES_MAX: Final = 4
_ERROR_BYTES_MAX: Final = 16_384
_ERROR_S: Final = 2.0
_DRAIN_S: Final = 1.0
_BACKOFF_S: Final = 0.25
_PORTS: Final = {b"https": 443, b"http": 80}
_SENDING: Final = "http11.send_request_headers.started"  # of httpcore's trace extension
_BROKEN: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, ssl.SSLError)
_LOOKUPS_MAX: Final = 8  # at once: a slow name server must not hold the threads that others need


class ProviderClient:
    """A connection pool for each provider, so that one that hangs cannot take the connections of others. ``retries`` is
    the budget that the engines' requests share.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        retries: RetryBudget,
        spending: ProviderSpending,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self.retries = retries
        self.spending = spending
        self._sealer = settings.sealer()
        self._tls = tls or ssl.create_default_context()
        self._addresses = _CheckedAddresses(frozenset(settings.provider_inward_hosts))
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}  # by provider; providers stay, at most 100
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)
        for pool in self._pools.values():
            await pool.aclose()
        self._addresses.close()

    def request(self, provider: ProviderRoute, wire: WireFormat, body: bytes, *, most_nanos: int) -> "ProviderRequest":
        """A request, which is sent when its response is asked for. It costs at most ``most_nanos``."""
        most = self._settings.provider_attempts_max
        return ProviderRequest(self, provider, wire, body, attempts_max=most, most_nanos=most_nanos)

    async def send(self, provider: ProviderRoute, body: bytes, on_sending: Callable[[], None]) -> httpcore.Response:
        """Send a request and return the response once its headers have arrived. ``on_sending`` is called once there is
        a connection. Raises AppError.
        """

        async def trace(event: str, _info: object) -> None:
            if event == _SENDING:
                on_sending()

        url = httpcore.URL(provider.url + format_of(provider).path)
        self._addresses.require_https(url, provider.provider_id)
        headers = {
            "host": _host_header(url),
            "content-length": str(len(body)),
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": "tenora",
            **format_of(provider).headers(self._key(provider)),
        }
        waits = {"connect": self._settings.provider_connect_s, "pool": self._settings.provider_connect_s}
        extensions = {"timeout": waits, "trace": trace}
        request = httpcore.Request("POST", url, headers=list(headers.items()), content=body, extensions=extensions)
        try:
            return await self._pool(provider.provider_id).handle_async_request(request)
        except httpcore.PoolTimeout as error:
            raise LocalShortage("This gateway has no connection left; try again shortly.", retry_after_s=1) from error
        except _BROKEN as error:
            raise errors.unreachable(provider.provider_id, error) from error

    async def pause(self, error: ProviderFailed, attempt: int) -> bool:
        """Wait before another attempt; False, at once, where there is to be none."""
        wait_s = error.retry_after_s
        if wait_s is None:
            wait_s = _BACKOFF_S * 2**attempt * (1 + random.random())  # noqa: S311 - spread, not secrecy
        if not error.may_pass or wait_s > self._settings.provider_retry_wait_max_s:
            return False
        if not self.retries.withdraw():
            metrics.RETRIES_REFUSED.inc()
            return False
        await asyncio.sleep(wait_s)
        return True

    def close_later(self, response: httpcore.Response, complete: "ProviderAnswer | None") -> None:
        """Close a response, which drops its connection unless it has been read to its end. What follows a ``complete``
        answer is read, so that its connection serves again.
        """
        closing = asyncio.create_task(_closed(response, complete))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _pool(self, provider_id: str) -> httpcore.AsyncConnectionPool:
        if (pool := self._pools.get(provider_id)) is None:
            pool = self._pools[provider_id] = httpcore.AsyncConnectionPool(
                ssl_context=self._tls,
                max_connections=self._settings.provider_connections_max,
                keepalive_expiry=self._settings.provider_keepalive_s,
                network_backend=self._addresses,
            )
        return pool

    def _key(self, provider: ProviderRoute) -> str:
        try:
            return self._sealer.open(base64.b64decode(provider.sealed_key), provider.provider_id)
        except (CannotOpen, binascii.Error) as error:
            raise ProviderFailed(
                "The key of the model's provider does not open here: its operator must set TENORA_PROVIDER_SECRET as "
                "the control plane has it.",
                code="provider_key_unreadable",
            ) from error


class ProviderRequest:
    """A request to a provider, with its retries before an answer begins. The caller closes and settles it. ``was_sent``
    says that the provider may have begun to work for it, until it refuses.
    """

    def __init__(
        self,
        client: ProviderClient,
        provider: ProviderRoute,
        wire: WireFormat,
        body: bytes,
        *,
        attempts_max: int,
        most_nanos: int,
    ) -> None:
        self.was_sent = False
        self._most_nanos = most_nanos
        self._taken_from: str | None = None  # key of the month that holds what this attempt may cost
        self._client = client
        self._provider = provider
        self._wire = wire
        self._body = body
        self._attempts_max = attempts_max
        self._response: httpcore.Response | None = None
        self._answer: ProviderAnswer | None = None

    async def response(self) -> "ProviderAnswer":
        """The answer, once its headers have arrived. Raises ProviderFailed, LocalShortage or InvalidRequest."""
        for attempt in range(self._attempts_max):
            self.was_sent = False
            self._taken_from = await self._client.spending.take(self._provider, self._most_nanos)
            try:
                return await self._attempt()
            except ProviderFailed as error:
                await self.settle(None)
                if attempt + 1 == self._attempts_max or not await self._client.pause(error, attempt):
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def settle(self, cost_nanos: int | None) -> None:
        """Give back what the last attempt may have cost and did not. Where the cost is not known, nothing is given back
        once the provider had the request. Idempotent.
        """
        key, self._taken_from = self._taken_from, None
        if key is not None:
            unknown = self._most_nanos if self.was_sent else 0
            kept = unknown if cost_nanos is None else cost_nanos
            await self._client.spending.give_back(key, self._most_nanos - kept)

    async def _attempt(self) -> "ProviderAnswer":
        response = self._response = await self._client.send(self._provider, self._body, self._on_sending)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status == 200:
            self._answer = ProviderAnswer(response, headers, self._wire)
            return self._answer
        raw = await _beginning(response)
        self.was_sent = False
        self.close()
        raise errors.refusal(self._provider.provider_id, response.status, headers, raw)

    def _on_sending(self) -> None:
        self.was_sent = True

    def close(self) -> None:
        """Release the connection."""
        response, answer = self._response, self._answer
        self._response = self._answer = None  # they lead back here
        if response is not None:
            self._client.close_later(response, answer if self._wire.done else None)


class ProviderAnswer:
    """An answer whose headers have arrived, translated to what an engine would send. ``headers`` are the provider's."""

    def __init__(self, response: httpcore.Response, headers: Mapping[str, str], wire: WireFormat) -> None:
        self.headers = headers
        self._received: AsyncIterator[bytes] = response.aiter_stream().__aiter__()
        self._wire = wire
        self._ended = False

    async def read_chunk(self) -> bytes:
        """The next bytes as the provider sends them; empty at their end. Raises StreamBroken."""
        try:
            return await anext(self._received, b"")
        except _BROKEN as error:
            raise StreamBroken(f"the connection to the provider broke: {type(error).__name__}") from error

    async def forward(self, consume: Callable[[bytes], bool]) -> bool:
        """Pass the translated events to ``consume`` as they arrive. Returns True at their end, and False once
        ``consume`` returns False to pause. Raises StreamBroken and the errors of ``consume``.
        """
        while not self._ended:
            received = await self.read_chunk()
            try:
                events = self._wire.feed(received) if received else self._wire.end()
            except StreamBroken as broken:
                if broken.before:
                    consume(broken.before)
                raise
            self._ended = not received or self._wire.done
            if events and not consume(events):
                return False
        return True


class _CheckedAddresses(httpcore.AsyncNetworkBackend):
    """Connects only to public addresses, and to those of the hosts that the operator names."""

    def __init__(self, inward: frozenset[str]) -> None:
        self._inward = inward
        self._plain = httpcore.AnyIOBackend()
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="provider-lookup")

    def close(self) -> None:
        """Accept no further lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def require_https(self, url: httpcore.URL, provider_id: str) -> None:
        """Raise ProviderFailed for a URL that would show the key and the prompt, unless the operator names its host."""
        port = _PORTS[url.scheme] if url.port is None else url.port
        if url.scheme != b"https" and host_and_port(url.host.decode(), port) not in self._inward:
            raise errors.unreachable(provider_id, ValueError("http"), may_pass=False)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failed: Exception = httpcore.ConnectError("the host has no address")
        for address in await self._addresses(host, port, timeout):
            try:
                return await self._plain.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def _addresses(self, host: str, port: int, within_s: float | None) -> list[str]:
        try:
            async with asyncio.timeout(within_s):
                lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
                found = await asyncio.get_running_loop().run_in_executor(self._threads, lookup)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            raise httpcore.ConnectError("the host was not found") from error
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))[:_ADDRESSES_MAX]
        if host_and_port(host, port) not in self._inward and not all(_is_public(address) for address in addresses):
            raise httpcore.ConnectError("an address of the host is not public")
        return addresses


def _is_public(address: str) -> bool:
    try:
        return is_public(ip_address(address))
    except ValueError:  # with a zone, such as fe80::1%eth0
        return False


def _host_header(url: httpcore.URL) -> str:
    return host_and_port(url.host.decode(), url.port)


async def _beginning(response: httpcore.Response) -> bytes:
    """The beginning of an error's body, as much as comes soon."""
    raw = bytearray()
    with suppress(TimeoutError, *_BROKEN):
        async with asyncio.timeout(_ERROR_S):
            async for part in response.aiter_stream():
                raw += part
                if len(raw) > _ERROR_BYTES_MAX:
                    break
    return bytes(raw[:_ERROR_BYTES_MAX])


async def _closed(response: httpcore.Response, complete: ProviderAnswer | None) -> None:
    with suppress(TimeoutError, StreamBroken):
        async with asyncio.timeout(_DRAIN_S):
            while complete is not None and await complete.read_chunk():
                pass
    with suppress(*_BROKEN):
        await response.aclose()
