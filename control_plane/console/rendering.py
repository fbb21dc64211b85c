"""Renders templates: escaped by default, an unknown name is an error, and text shows its invisible characters.

Also the headers that every page carries, so that a browser runs only the console's own scripts and styles.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import jinja2
from litestar import Response
from markupsafe import Markup

from control_plane.console import charts, commands, number_format
from control_plane.console.assets import Assets
from core import clock
from core.visible_text import visible

_TEMPLATES: Final = Path(__file__).parent / "templates"


def security_headers(connect: str = "") -> dict[str, str]:
    """Headers of every page. ``connect`` is the origin of the bucket, to which uploads go."""
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self' {connect}; "
        "worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "require-trusted-types-for 'script'; trusted-types tenora"
    )
    return {
        "content-security-policy": policy,
        "cache-control": "no-store",
        "referrer-policy": "same-origin",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "cross-origin-opener-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
    }


class Renderer:
    """Makes pages of templates. ``prefix`` is the path below which a proxy shows the console."""

    def __init__(self, assets: Assets, prefix: str, bucket_origin: str = "") -> None:
        self._prefix = prefix
        self._headers = security_headers(bucket_origin)
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_visible,
        )
        self._environment.globals |= {
            "url": self.url,
            "asset": lambda name: self.url(assets.path_of(name)),
            "now": clock.now,
            "days_ago": _days_ago,
            "charts": charts,
            "commands": commands,
        }
        self._environment.filters |= {**number_format.FILTERS, "time": _time, "labelled": _labelled}

    def url(self, path: str) -> str:
        """The path as browsers see it."""
        return self._prefix + path

    def page(self, template: str, context: Mapping[str, Any], *, status: int = 200) -> Response[str]:
        """The answer with this page."""
        html = self._environment.get_template(template).render(**context)
        return Response(html, status_code=status, media_type="text/html; charset=utf-8", headers=self._headers)


def _visible(value: Any) -> Any:  # any value of a template
    """Text with what would be invisible, or turn the direction of the text around it, written as its code."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _time(value: str | datetime | int | None) -> Markup:
    """An instant, or Unix seconds as OpenAI's objects have: how long ago or ahead within a day, else its date. The
    exact one is in the title.
    """
    if value is None:
        return Markup("–")
    if isinstance(value, int):
        value = datetime.fromtimestamp(value, UTC)
    at = (datetime.fromisoformat(value) if isinstance(value, str) else value).astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S"), number_format.ago(at, clock.now())
    )


def _days_ago(days: int) -> str:
    """The instant some days ago, as a query of the API takes it: the start of that hour."""
    return (clock.now() - timedelta(days=days)).strftime("%Y-%m-%dT%H:00:00Z")


def _labelled(cells: Markup, heads: Sequence[str]) -> Markup:
    """The cells of a row, each with the head of its column, which narrow screens show beside it."""
    before, *rest = cells.split("<td")
    texts = [head.removeprefix(">") for head in heads] + [""] * len(rest)
    named = (Markup('<td data-head="{}"').format(text) + each for text, each in zip(texts, rest, strict=False))
    return Markup("").join([before, *named])
