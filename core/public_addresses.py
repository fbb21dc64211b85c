"""Which hosts and addresses belong to the internet. Pure: nothing is looked up here.

Processes that connect to an address which a person chose ask this first. Fails closed: a range that is not known to be
public is not.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

PRINTABLE: Final = re.compile(r"[!-\[\]-~]+")
"""ASCII without spaces, control characters and the backslash: all that a URL may consist of."""

_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")

# IANA's registries of special addresses (RFC 6890 and its updates, as of 2026), and the addresses at which clouds serve
# metadata outside of them.
_REFUSED_V4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
            "168.63.129.16/32",
        ),
    )
)  # fmt: skip
_PUBLIC_V6: Final = IPv6Network("2000::/3")  # the only range that is given out; all embedded IPv4 forms lie elsewhere
_REFUSED_V6: Final = tuple(
    map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"))
)  # protocol assignments with Teredo, documentation, 6to4, AS112


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address may belong to a host on the internet."""
    match address:
        case IPv4Address():
            return not any(address in network for network in _REFUSED_V4)
        case IPv6Address():
            return address in _PUBLIC_V6 and not any(address in network for network in _REFUSED_V6)


def is_host(host: str) -> bool:
    """Whether this is a name of a host or an IP address, as a URL has it without brackets."""
    if ":" in host:
        try:
            return ip_address(host) is not None and "%" not in host
        except ValueError:
            return False
    return 0 < len(host) <= 253 and all(_LABEL.fullmatch(label) for label in host.split("."))


def host_and_port(host: str, port: int | None) -> str:
    """A host as a URL and a Host header have it, with the port if there is one."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
