"""Search: the person's pages, adapters, keys and tenants by name, and any object by its id. It reads the API as the
person, so it finds what the person may see.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from control_plane.console.frame import Answer, Frame
from control_plane.console.page_routes import PageRoutes
from control_plane.console.visit import HttpRequest, Visit

_ID: Final = re.compile(r"(req|inv|tn)_[a-z0-9]{1,64}")
_PAGE_OF_ID: Final = {"req": "/requests/", "inv": "/invoices/", "tn": "/admin/tenants/"}
_ROWS_MAX: Final = 20
_READ_MAX: Final = 200  # the newest of each kind, among which names are looked for
_WORDS_MAX: Final = 100


class Hit(NamedTuple):
    """Something that was found: its kind, its name, and its page's path."""

    kind: str
    name: str
    path: str


@dataclass(frozen=True, kw_only=True)
class SearchRoutes:
    """The route of the search field, which stands in the frame of each page."""

    frame: Frame
    pages: PageRoutes

    def handlers(self) -> list[HTTPRouteHandler]:
        """The route."""

        @get("/search")
        async def search(request: HttpRequest) -> Response[Any]:
            return await self._search(request)

        return [search]

    async def _search(self, request: HttpRequest) -> Answer:
        visit = await self.pages.visit(request)
        words = request.query_params.get("q", "").strip()[:_WORDS_MAX]
        if (found := _ID.fullmatch(words)) is not None:
            return self.frame.redirect(_PAGE_OF_ID[found[1]] + words)
        hits = [*self._pages(visit, words), *await self._named(visit, words)] if words else []
        return self.frame.page(request, "search.html", {"words": words, "hits": hits[:_ROWS_MAX]})

    def _pages(self, visit: Visit, words: str) -> Iterator[Hit]:
        for group, pages in self.frame.navigation(visit.person):
            for page in pages:
                if words.casefold() in page.title.casefold():
                    yield Hit(group, page.title, page.path)

    async def _named(self, visit: Visit, words: str) -> list[Hit]:
        """The adapters, keys and tenants with these words in their names."""
        limit = urlencode({"limit": _READ_MAX})
        kinds: list[tuple[str, str, str, Callable[[Mapping[str, str]], str]]] = [
            ("Adapter", "/api/v1/adapters", limit, lambda each: f"/adapters/{quote(each['name'], safe='')}"),
            ("Key", "/api/v1/api-keys", limit, lambda _: "/keys"),
            (
                "Tenant",
                "/api/v1/admin/tenants",
                urlencode({"search": words, "limit": _ROWS_MAX}),
                lambda each: f"/admin/tenants/{each['id']}",
            ),
        ]
        allowed = [each for each in kinds if _may_read(visit, each[1])]
        answers = await asyncio.gather(*(visit.api("GET", path, query=query) for _, path, query, _ in allowed))
        return [
            Hit(kind, each["name"], page_of(each))
            for (kind, path, _, page_of), answer in zip(allowed, answers, strict=True)
            if answer.ok
            for each in answer.body["data"]
            if words.casefold() in each["name"].casefold() or path.endswith("/tenants")
        ]


def _may_read(visit: Visit, path: str) -> bool:
    person = visit.person
    if path.startswith("/api/v1/admin/"):
        return person.platform_principal is not None and person.viewing_until is None
    return person.tenant_principal is not None
