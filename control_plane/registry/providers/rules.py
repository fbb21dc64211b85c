"""What this installation allows outside providers to be: it needs a secret for their keys, and their addresses lie on
the internet unless the operator names them. Hosts are looked up before a transaction begins.
"""

from typing import Final
from urllib.parse import urlsplit

from billing.notifications.addresses import HostLookup, WebhookTarget
from core.errors import InvalidRequest, Unprocessable
from core.provider_settings import ProviderSettings
from core.public_addresses import PRINTABLE, host_and_port, is_host

_LOOKUP_MS: Final = 3_000
_LOOKUPS_OF: Final = "providers"  # they share the threads of one tenant
_PORTS: Final = {"https": 443, "http": 80}


class ProviderRules:
    """What providers may be. One for each web process."""

    def __init__(self, settings: ProviderSettings, hosts: HostLookup | None = None) -> None:
        self.sealer = settings.sealer()
        self._inward = frozenset(settings.provider_inward_hosts)
        self._hosts = hosts or HostLookup(allow_loopback=False, timeout_ms=_LOOKUP_MS)

    def require_secret(self) -> None:
        """Raise Unprocessable unless keys can be encrypted."""
        if not self.sealer.usable:
            raise Unprocessable(
                "This installation has no outside providers. Its operator must set TENORA_PROVIDER_SECRET.",
                code="providers_not_set_up",
            )

    def check(self, url: str) -> None:
        """Look a provider's host up, outside of any transaction. Gateways check the address again when they connect.
        Raises InvalidRequest and Unprocessable.
        """
        target = self._parsed(url)
        if host_and_port(target.host, target.port) in self._inward:
            return
        if target.scheme != "https":
            raise _unusable("begin it with https://; only hosts in TENORA_PROVIDER_INWARD_HOSTS may use http")
        try:
            self._hosts.addresses(target, tenant_id=_LOOKUPS_OF)
        except Unprocessable as refused:
            if refused.code == "webhook_host_not_found":
                raise Unprocessable(
                    f"url: the host {target.host} has no IP address. Check its name, and try again.",
                    code="provider_host_not_found",
                    param="url",
                ) from None
            raise Unprocessable(
                f"url: the host {target.host} has an address that is not public. Use a host on the internet, or let "
                f"the operator add {host_and_port(target.host, target.port)} to TENORA_PROVIDER_INWARD_HOSTS.",
                code="provider_address_not_public",
                param="url",
            ) from None

    def close(self) -> None:
        """Accept no further lookups."""
        self._hosts.close()

    def _parsed(self, url: str) -> WebhookTarget:
        if not PRINTABLE.fullmatch(url):
            raise _unusable("use printable ASCII characters only; write other names in punycode")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise _unusable("its host or port cannot be read") from None
        host = (parts.hostname or "").removesuffix(".")
        if parts.scheme not in _PORTS:
            raise _unusable("begin it with https://")
        if "@" in parts.netloc or "#" in url or "?" in url:
            raise _unusable("leave out user, password, query and fragment; the API key has a field of its own")
        if not is_host(host):
            raise _unusable("its host is no name and no IP address")
        return WebhookTarget(parts.scheme, host, _PORTS[parts.scheme] if port is None else port, parts.path)


def _unusable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"url: this is no URL of a provider: {reason}.", code="invalid_provider_url", param="url")
