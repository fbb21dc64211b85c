"""Chromium for tests and screenshots: the one that ``make test-browser`` unpacked, or the system's.

Playwright is imported late: only ``make test-browser`` and ``make screenshots`` install it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fixtures.control_plane.browser import Person

TOOLS: Final = Path(__file__).parents[2] / ".browser"
_UNPACKED: Final = TOOLS / "root"
_LIBRARIES: Final = _UNPACKED / "usr/lib/x86_64-linux-gnu"
_AXE: Final = TOOLS / "node_modules/axe-core/axe.min.js"
WIDTHS: Final = {"phone": 360, "desktop": 1280}
_HEIGHTS: Final = {"phone": 740, "desktop": 800}
THEMES: Final = ("light", "dark")
_SETTLED_MS: Final = 10_000
_CHECKS: Final = Path(__file__).with_name("page_checks.js")
_FONTS: Final = """<fontconfig><dir>{}</dir><cachedir>{}</cachedir>
<alias binding="same"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
<alias binding="same"><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias binding="same"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright, without profile, until the block ends."""
    from playwright.sync_api import sync_playwright

    unpacked = _UNPACKED / "usr/lib/chromium/chromium"
    program = str(unpacked) if unpacked.exists() else shutil.which("chromium")
    assert program, "there is no Chromium: `make test-browser` unpacks Debian's"
    environment: dict[str, str | float | bool] = dict(os.environ)
    if unpacked.exists():
        fonts = _UNPACKED / "fonts.conf"
        fonts.write_text(_FONTS.format(_UNPACKED / "usr/share/fonts", TOOLS / "fonts"))
        libraries = f"{_LIBRARIES}:{_LIBRARIES}/pulseaudio"
        environment |= {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(fonts), "HOME": str(TOOLS)}
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers and root lack; pages here are the console's own.
        started = playwright.chromium.launch(executable_path=program, env=environment, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class View:
    """A page of the console at one width and theme, and what went wrong on it so far."""

    page: Any
    url: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str, *, status: int = 200) -> None:
        """Open a path and wait until nothing more is loaded."""
        answer = self.page.goto(self.url + path)
        assert answer.status == status, f"{path}: {answer.status} {self.page.inner_text('main')[:200]}"
        self.page.wait_for_load_state("load", timeout=_SETTLED_MS)

    def asked(self, url: str) -> None:
        """Note a request to another host."""
        if not url.startswith((self.url, "data:", "blob:")):
            self.wrong.append(url)

    def axe(self) -> list[str]:
        """What axe finds."""
        return self.page.evaluate("() => checks.axe()")

    def too_wide(self) -> list[str]:
        """Elements that end right of the screen, and cannot be scrolled to within the page."""
        return self.page.evaluate("() => checks.tooWide()")

    def too_small(self) -> list[str]:
        """Controls that are too low for a finger."""
        return self.page.evaluate("() => checks.tooSmall()")

    def words(self) -> set[str]:
        """The words of the page's main part, without numbers, times and the labels of axes."""
        visible = self.page.inner_text("main").lower()
        return {
            word
            for word in self.page.evaluate("() => checks.text()").lower().split()
            if word.isalpha() and word in visible
        }


@contextmanager
def view(
    browser: Any, url: str, person: Person | None = None, *, device: str = "desktop", theme: str = "light",
    width: int | None = None, scale: float = 1, axe: bool = False, **options: Any,
) -> Iterator[View]:  # fmt: skip
    """A new window, signed in as ``person``."""
    size = {"width": width or WIDTHS[device], "height": _HEIGHTS[device]}
    with_touch = device == "phone"
    context = browser.new_context(
        viewport=size, color_scheme=theme, device_scale_factor=scale, has_touch=with_touch, is_mobile=with_touch,
        locale="en-GB", reduced_motion="reduce", **options,
    )  # fmt: skip
    if person is not None:
        cookies = [
            {"name": each.name, "value": each.value, "url": url}
            for each in person.browser.http.cookies.jar
            if each.name.endswith("tenora_session")
        ]
        context.add_cookies(cookies)
    context.add_init_script(path=_CHECKS)
    if axe:
        context.add_init_script(path=_AXE)
    page = context.new_page()
    shown = View(page, url)
    page.on("console", lambda said: shown.wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: shown.wrong.append(str(error)))
    page.on("request", lambda asked: shown.asked(asked.url))
    yield shown
    context.close()
