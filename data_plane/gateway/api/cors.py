"""CORS for the gateway: which pages a browser lets call it, with a key and without cookies (the Fetch standard, 3.2).

Fails closed: a browser hides responses from pages of origins that are not configured.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from core.errors import Forbidden
from data_plane.gateway.errors import Headers, MethodNotAllowed

_ORIGIN: Final = b"origin"
_METHOD: Final = b"access-control-request-method"
_NAMES: Final = b"access-control-request-headers"
_MAX_AGE_S: Final = 600


class Cors:
    """The rules for exactly these origins. Without origins, no page of another site may call."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The headers for every response to this request."""
        if not self._origins:
            return []
        shared: Headers = [(b"vary", _ORIGIN)]
        if (origin := _first(request, _ORIGIN)) in self._origins:
            shared += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", b"*")]
        return shared

    def preflight(self, request: Headers) -> Headers:
        """The headers that allow the request that this preflight announces. SDKs send many headers of their own, so all
        names are allowed. Raises MethodNotAllowed without configured origins or where OPTIONS is no preflight, and
        Forbidden for other origins.
        """
        if not self._origins or not _first(request, _METHOD):
            raise MethodNotAllowed("Only pages of the origins in TENORA_GATEWAY_CORS_ORIGINS may send OPTIONS.")
        if _first(request, _ORIGIN) not in self._origins:
            raise Forbidden(
                "Pages of this origin may not call the gateway; add the origin to TENORA_GATEWAY_CORS_ORIGINS.",
                code="origin_not_allowed",
            )
        return [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", _first(request, _NAMES)),
            (b"access-control-max-age", b"%d" % _MAX_AGE_S),
        ]


def _first(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")
