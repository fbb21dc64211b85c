"""Renders templates: escaped by default, an unknown name is an error, and text shows its invisible characters.

Also the headers that every page carries, so that a browser runs only the console's own scripts and styles.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from litestar import Response
from markupsafe import Markup

from control_plane.console import charts, number_format
from control_plane.console.assets import Assets
from core import clock

_TEMPLATES: Final = Path(__file__).parent / "templates"
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


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
            "charts": charts,
        }
        self._environment.filters |= {**number_format.FILTERS, "time": _time}

    def url(self, path: str) -> str:
        """The path as browsers see it."""
        return self._prefix + path

    def page(self, template: str, context: Mapping[str, Any], *, status: int = 200) -> Response[str]:
        """The answer with this page."""
        html = self._environment.get_template(template).render(**context)
        return Response(html, status_code=status, media_type="text/html; charset=utf-8", headers=self._headers)


def _visible(value: Any) -> Any:  # any value of a template
    """Text with what would be invisible, or turn the direction of the text around it, written as its code."""
    if isinstance(value, str) and not isinstance(value, Markup) and _INVISIBLE.search(value):
        return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


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
