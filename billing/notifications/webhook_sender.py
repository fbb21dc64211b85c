"""Signs one message by the Standard Webhooks specification and posts it to a webhook. It connects only to
addresses that were checked, follows no redirect, and bounds the time and the answer.

The host is looked up once, before connecting, and each socket is made for one of the checked addresses: a name that
changes its address meanwhile (DNS rebinding) leads nowhere. SNI, certificate and Host header are the host's own.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from standardwebhooks import Webhook
from yarl import URL

from billing.notifications.addresses import HostLookup, WebhookTarget, parse_webhook
from billing.notifications.retries import SendResult
from core.errors import AppError

GONE: Final = 410
_RETRY_AFTER_DIGITS_MAX: Final = 9
_SUCCESS: Final = range(200, 300)
_REDIRECTS: Final = range(300, 400)


def signed_headers(*, message_id: str, at: datetime, body: str, secrets: Sequence[str]) -> dict[str, str]:
    """The three headers for one attempt: the same ``webhook-id`` every time, the attempt's own time in UTC, and one
    signature for each secret, so that a receiver may have the old or the new one during a rotation.
    """
    signatures = [Webhook(secret).sign(message_id, at, body) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


class WebhookSender:
    """Sends from the calling thread, which it holds for at most the lookup's time and ``timeout_ms``."""

    def __init__(
        self, hosts: HostLookup, *, timeout_ms: int, response_bytes_max: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._hosts = hosts
        self._timeout_ms = timeout_ms
        self._response_bytes_max = response_bytes_max
        self._tls = tls or ssl.create_default_context()
        self._user_agent = f"Tenora-Webhooks/{version('tenora')}"

    def send(self, url: str, headers: Mapping[str, str], body: str, *, tenant_id: str) -> SendResult:
        """POST the body once, for a tenant. Never raises for what the receiver or the network does."""
        try:
            target = parse_webhook(url, allow_loopback=self._hosts.allow_loopback)
            addresses = self._hosts.addresses(target, tenant_id=tenant_id)
        except AppError as refused:
            return SendResult(error=refused.message)
        try:
            return asyncio.run(self._post(target, addresses, headers, body))
        except TimeoutError:
            return SendResult(error=f"no complete answer within {self._timeout_ms} ms")
        except aiohttp.ClientSSLError:
            return SendResult(error="the TLS handshake failed; check the certificate of the host")
        except aiohttp.ClientConnectorError:
            return SendResult(error="the host did not accept the connection")
        except (aiohttp.ClientError, OSError, ValueError):
            return SendResult(error="the host did not give a valid HTTP answer")

    async def _post(
        self, target: WebhookTarget, addresses: Sequence[str], headers: Mapping[str, str], body: str
    ) -> SendResult:
        url = URL(f"{target.scheme}://{target.host_header}{target.path}", encoded=True)
        own = {
            "host": target.host_header,
            "user-agent": self._user_agent,
            "content-type": "application/json",
            "accept-encoding": "identity",
        }
        pinned = _PinnedAddresses(addresses)
        connector = aiohttp.TCPConnector(
            resolver=pinned,
            socket_factory=pinned.socket,
            ssl=self._tls,
            use_dns_cache=False,
            force_close=True,
            limit=1,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout_ms / 1000),
            auto_decompress=False,
            trust_env=False,
        )
        async with (
            session,
            session.post(url, data=body.encode(), headers={**headers, **own}, allow_redirects=False) as answer,
        ):
            await self._drain(answer)
            return _judge(answer)

    async def _drain(self, answer: aiohttp.ClientResponse) -> None:
        """Read the answer up to the limit, so that an ordinary one ends properly. Its content is neither used nor
        shown, and the status has said already whether the message was accepted.
        """
        left = self._response_bytes_max
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            while left > 0 and (chunk := await answer.content.read(left)):
                left -= len(chunk)
        answer.close()


class _PinnedAddresses(AbstractResolver):
    """Answers every lookup with the checked addresses, and makes sockets for no other address."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._checked = {ip_address(address) for address in addresses}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        del family
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is open."""

    def socket(self, info: tuple[Any, ...]) -> socket.socket:  # an answer of getaddrinfo
        family, kind, protocol, _, address = info
        if ip_address(address[0]) not in self._checked:
            raise OSError(f"refused to connect to {address[0]}, which was not checked")
        return socket.socket(family=family, type=kind, proto=protocol)


def _judge(answer: aiohttp.ClientResponse) -> SendResult:
    status = answer.status
    if status in _SUCCESS:
        return SendResult()
    given = answer.headers.get("retry-after", "").strip()
    digits = given.isascii() and given.isdigit() and len(given) <= _RETRY_AFTER_DIGITS_MAX
    suffix = "; redirects are not followed" if status in _REDIRECTS else ""
    return SendResult(
        error=f"the host answered {status}{suffix}", gone=status == GONE, retry_after_s=int(given) if digits else None
    )
