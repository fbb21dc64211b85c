"""Which addresses of the network a webhook may have. Pure rules over a URL and over IP addresses, and the name lookup.

A tenant chooses the URL, and the billing worker connects to it from inside our network. So a host is looked up and
every answer is checked, at registration and before each attempt; ``webhook_sender`` connects to a checked answer only.
Fails closed: a range that is not known to be public is refused.
"""

import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LookupTimeout
from ipaddress import ip_address
from threading import Condition
from typing import Final
from urllib.parse import urlsplit

import msgspec

from billing.notifications.settings import ADDRESS_LENGTH_MAX
from core.errors import InvalidRequest, Unprocessable
from core.public_addresses import PRINTABLE, is_host, is_public

Resolve = Callable[[str, int], Sequence[str]]
"""From host and port to IP addresses as text. Raises OSError."""

_PORTS_FROM: Final = 1_024
_LOOKUPS_MAX: Final = 32
_LOOKUPS_OF_TENANT_MAX: Final = 4  # a host that never answers holds its thread longer than its caller


class WebhookTarget(msgspec.Struct, frozen=True):
    """A webhook's URL in its parts. ``path`` has the query too, and is sent as it is written."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        """The host as requests name it, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": 443, "http": 80}[self.scheme] else f"{host}:{self.port}"


def parse_webhook(url: str, *, allow_loopback: bool) -> WebhookTarget:
    """The parts of a webhook's URL. Raises InvalidRequest for anything but a plain https URL, or http with loopback."""
    if len(url) > ADDRESS_LENGTH_MAX or not PRINTABLE.fullmatch(url):
        raise _unusable(f"use at most {ADDRESS_LENGTH_MAX} printable ASCII characters; write other names in punycode")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unusable("its host or port cannot be read") from None
    schemes = ("https", "http") if allow_loopback else ("https",)
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme not in schemes:
        raise _unusable(f"begin it with {' or '.join(f'{each}://' for each in schemes)}")
    if "@" in parts.netloc or "#" in url:
        raise _unusable("leave out user, password and fragment; messages are signed instead")
    if not is_host(host):
        raise _unusable("its host is no name and no IP address")
    port = {"https": 443, "http": 80}[parts.scheme] if port is None else port
    if port != 443 and port < _PORTS_FROM:
        raise _unusable(f"its port is {port}; use 443, or one from {_PORTS_FROM} on")
    query = f"?{parts.query}" if parts.query else ""
    return WebhookTarget(parts.scheme, host, port, (parts.path or "/") + query)


def shown_address(kind: str, address: str) -> str:
    """An e-mail address, or a webhook's host: its path may hold a secret, and belongs in no message or log."""
    return address if kind == "email" else f"{urlsplit(address).scheme}://{urlsplit(address).hostname}"


def is_allowed(address: str, *, allow_loopback: bool) -> bool:
    """Whether a webhook may have this IP address: a public one, or a loopback one where that is allowed."""
    try:
        found = ip_address(address)
    except ValueError:  # with a zone, such as fe80::1%eth0
        return False
    if allow_loopback and found.is_loopback:
        return True
    return is_public(found)


class HostLookup:
    """Looks hosts up and checks every answer. A lookup that hangs holds one of the few threads of its tenant, never the
    caller, and leaves the other threads to other tenants.
    """

    def __init__(self, *, allow_loopback: bool, timeout_ms: int, resolve: Resolve | None = None) -> None:
        self._allow_loopback = allow_loopback
        self._timeout_ms = timeout_ms
        self._resolve = resolve or _resolve
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="host-lookup")
        self._ended = Condition()
        self._running: Counter[str] = Counter()

    @property
    def allow_loopback(self) -> bool:
        """Whether loopback addresses and http are allowed."""
        return self._allow_loopback

    def addresses(self, target: WebhookTarget, *, tenant_id: str) -> list[str]:
        """The allowed IP addresses of the host, without doubles. Raises Unprocessable if there is none, or if any of
        them is not allowed: a host with one private address can lead there at any time.
        """
        found = self._look_up(target, tenant_id)
        if not found:
            raise Unprocessable(
                f"address: the host {target.host} has no IP address. Check its name, and try again.",
                code="webhook_host_not_found",
                param="address",
            )
        if not all(is_allowed(address, allow_loopback=self._allow_loopback) for address in found):
            raise Unprocessable(
                f"address: the host {target.host} has an address that is not public. Use a host on the internet.",
                code="webhook_address_not_public",
                param="address",
            )
        return found

    def _look_up(self, target: WebhookTarget, tenant_id: str) -> list[str]:
        """What the host resolves to. Nothing where there is no answer in time, or the tenant's other lookups hang."""
        until = time.monotonic() + self._timeout_ms / 1000
        with self._ended:
            if not self._ended.wait_for(
                lambda: self._running[tenant_id] < _LOOKUPS_OF_TENANT_MAX, until - time.monotonic()
            ):
                return []
            self._running[tenant_id] += 1
        lookup = self._threads.submit(self._resolve, target.host, target.port)
        lookup.add_done_callback(lambda _: self._end(tenant_id))
        try:
            return list(dict.fromkeys(lookup.result(max(0, until - time.monotonic()))))
        except (OSError, UnicodeError, LookupTimeout):
            lookup.cancel()
            return []

    def _end(self, tenant_id: str) -> None:
        with self._ended:
            self._running[tenant_id] -= 1
            self._running += Counter()  # keeps no tenant without lookups
            self._ended.notify_all()

    def close(self) -> None:
        """Accept no further lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _unusable(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"address: this is no URL of a webhook: {reason}.", code="invalid_webhook_address", param="address"
    )
