"""What a page is: its address, its template, and the reads of the API that it shows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from urllib.parse import quote, unquote

from core import clock

_PARAMETER: Final = re.compile(r"{(\w+)}")
_MONTH: Final = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class ConsolePage:
    """A page. ``reads`` are paths of the API by the name that the template uses; ``queried`` is the read that gets the
    page's own query, so that filters and pages of a list are in the address. ``group`` and ``key`` are its place in the
    navigation and its shortcut. ``scope`` is what a role needs, where that is not the scope of the first read.
    """

    path: str
    template: str
    title: str
    reads: Mapping[str, str]
    group: str = ""
    queried: str = ""
    key: str = ""
    scope: str = ""

    @property
    def is_admin(self) -> bool:
        """Whether it is for people who run the platform."""
        return self.path.startswith("/admin")

    @property
    def subject(self) -> str:
        """The name of the read that is the page's own."""
        return next(iter(self.reads))

    def match(self, path: str) -> dict[str, str] | None:
        """The parameters of a path of this page; None for another page's."""
        pattern = _PARAMETER.sub(lambda found: f"(?P<{found[1]}>[^/]+)", self.path)
        found = re.fullmatch(pattern, path)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}

    def path_for(self, parameters: Mapping[str, str]) -> str:
        """The path with its parameters filled in."""
        return _filled(self.path, parameters)

    def reads_for(self, parameters: Mapping[str, str], query: str) -> dict[str, tuple[str, str]]:
        """Path and query of each read. ``{month_ago}`` stands for the day 30 days ago."""
        values = {**parameters, "month_ago": (clock.now() - _MONTH).strftime("%Y-%m-%dT00:00:00Z")}
        made = {}
        for name, template in self.reads.items():
            path, _, own = _filled(template, values).partition("?")
            made[name] = (path, _merged(own, query) if name == self.queried else own)
        return made


def _filled(template: str, parameters: Mapping[str, str]) -> str:
    return _PARAMETER.sub(lambda found: quote(parameters[found[1]], safe=""), template)


def _merged(own: str, query: str) -> str:
    """The page's query, with the read's own values for what it does not say."""
    given = {pair.partition("=")[0] for pair in query.split("&")}
    kept = [pair for pair in own.split("&") if pair and pair.partition("=")[0] not in given]
    return "&".join([*kept, *(pair for pair in query.split("&") if pair.partition("=")[2])])
