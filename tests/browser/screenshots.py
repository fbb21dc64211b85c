"""Takes a picture of each page, light and dark, on a desktop and on a phone: ``make screenshots``.

All go to ``.browser/screenshots``, whole pages to look at; the chosen ones to ``docs/screenshots``, as a screen shows
them.
"""

import io
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click
import structlog
from PIL import Image

from core import clock
from tests.browser.chromium import THEMES, TOOLS, View, chromium, view
from tests.browser.conftest import ADMIN_PATHS, TENANT_PATHS
from tests.browser.demonstration import MODEL, Demonstration
from tests.browser.standing_alone import standing_alone
from tests.fixtures.control_plane.streaming_gateway import StreamingGateway

KEPT: Final = Path("docs/screenshots")
KEPT_BYTES_MAX: Final = 150_000
CHOSEN: Final = (
    ("/", "desktop", "light"),
    ("/adapters/{name}", "desktop", "light"),
    ("/adapters/faq/revisions/{rejected}", "desktop", "light"),
    ("/playground", "desktop", "dark"),
    ("/usage?group_by=adapter&bucket=1d", "desktop", "light"),
    ("/invoices/{invoice_id}", "desktop", "light"),
    ("/admin", "desktop", "dark"),
    ("/admin/fleet", "desktop", "light"),
    ("/admin/reconciliation", "desktop", "dark"),
    ("/", "phone", "dark"),
    ("/requests", "phone", "light"),
    ("/limits", "phone", "light"),
)
_PROMPT: Final = "My order arrived with one boot missing."
_ANSWERS: Final = {
    MODEL: "I'm sorry to hear that your order arrived incomplete. Could you tell me more about what is missing?",
    "ticket-router": "route: missing-item",
    "shop-voice": "One boot gets no one up a mountain. Tell me your order number, and its twin leaves today.",
}


def name_of(path: str, device: str, theme: str) -> str:
    """The picture's file name without its ending."""
    words = path.replace("{", "").replace("}", "").partition("?")[0].strip("/").replace("/", "-") or "home"
    query = "-filtered" if "model=" in path else "-by-adapter" if "group_by" in path else ""
    return f"{words}{query}-{device}-{theme}"


def show(shown: View, path: str, ids: dict[str, str]) -> None:
    """Open a page as people see it: the usage of a month, a prompt that was answered."""
    target = path.format(**ids)
    if "group_by" in path:
        target += f"&start={(clock.now() - timedelta(days=30)).strftime('%Y-%m-%dT00:00:00Z')}"
    shown.open(target)
    if path == "/playground":
        for number, model in enumerate(_ANSWERS):
            shown.page.fill(f"#model{number}", model)
        shown.page.fill("#user", _PROMPT)
        shown.page.click("form#playground button.primary")
        shown.page.get_by_text("tok/s").nth(2).wait_for()


def kept(png: bytes, path: Path) -> None:
    """Write a picture as WebP, as good as its size allows."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    for quality in (90, 80, 70, 60):
        image.save(path, "WEBP", quality=quality, method=6)
        if path.stat().st_size <= KEPT_BYTES_MAX:
            return
    raise SystemExit(f"{path} has more than {KEPT_BYTES_MAX} bytes")


def take(browser: Any, platform: Demonstration, only: str, everything: Path, *, chosen: bool) -> None:
    """All pictures whose name contains ``only``, or of them the chosen ones."""
    paths = ["/sign-in", *TENANT_PATHS, *ADMIN_PATHS]
    for path in paths:
        person = platform.operator if path.startswith("/admin") else platform.owner
        for device in ("desktop", "phone"):
            for theme in THEMES:
                name = name_of(path, device, theme)
                is_chosen = (path, device, theme) in CHOSEN
                if only not in name or (chosen and not is_chosen):
                    continue
                signed_in = None if path == "/sign-in" else person
                scale = 2 if is_chosen else 1
                with view(browser, platform.api.url, signed_in, device=device, theme=theme, scale=scale) as shown:
                    show(shown, path, platform.ids)
                    shown.page.screenshot(path=everything / f"{name}.png", full_page=True, scale="css")
                    if is_chosen:
                        kept(shown.page.screenshot(), KEPT / f"{name}.webp")
                click.echo(name)


@click.command()
@click.option("--only", default="", help="Take the pictures whose name contains this.")
@click.option("--chosen", is_flag=True, help="Take the pictures of docs/screenshots alone.")
def main(only: str, *, chosen: bool) -> None:
    """Take the pictures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    StreamingGateway.answers, StreamingGateway.pause_s = _ANSWERS, 0.02
    everything = TOOLS / "screenshots"
    for folder in (everything, KEPT):
        folder.mkdir(parents=True, exist_ok=True)
    with standing_alone() as platform, chromium() as browser:
        take(browser, platform, only, everything, chosen=chosen)


if __name__ == "__main__":
    main()
