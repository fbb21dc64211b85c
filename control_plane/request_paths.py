"""Rewrites what Litestar's router cannot match: documents with an ending, and lists as OpenAI's SDKs write them.

``/api/v1/invoices/inv_1.pdf`` becomes ``/api/v1/invoices/inv_1/pdf``, and ``group_by[]=model`` below
``/v1/organization`` becomes ``group_by=model``.
"""

import re
from typing import Final
from urllib.parse import unquote

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

_DOCUMENT: Final = re.compile(r"(/api/v1/(?:admin/)?(?:invoices|credit-notes)/[A-Za-z0-9_]{1,64})\.(pdf|csv)")
_LISTS: Final = "/v1/organization/"


class RequestPaths:
    """The ASGI wrapper. It changes the path and the query, and decides nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            if match := _DOCUMENT.fullmatch(scope["path"]):
                scope["path"] = f"{match[1]}/{match[2]}"
                scope["raw_path"] = scope["path"].encode()
            elif scope["path"].startswith(_LISTS):
                scope["query_string"] = plain_lists(scope["query_string"])
        await self._app(scope, receive, send)


def plain_lists(query: bytes) -> bytes:
    """The query with ``name=`` for each ``name[]=``."""
    return b"&".join(_plain(pair) for pair in query.split(b"&"))


def _plain(pair: bytes) -> bytes:
    name, separator, value = pair.partition(b"=")
    text = unquote(name.decode("latin-1"))
    return text[:-2].encode("latin-1") + separator + value if text.endswith("[]") and text[:-2].isidentifier() else pair
