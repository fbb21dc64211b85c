"""Measures how fast pages appear on a slow line and a slow processor: ``python -m tests.browser.speed``.

1.6 Mbit/s, 150 ms and a quarter of the processor's speed, as Chromium emulates them. Prints the largest contentful
paint, the layout shift and the bytes of each page with their goals; exits with status 1 where one is missed.
"""

import json
import logging
from pathlib import Path
from typing import Any, Final

import click
import structlog

from benchmarks.goals import judged, report
from tests.browser.chromium import chromium, view
from tests.browser.demonstration import Demonstration
from tests.browser.standing_alone import standing_alone

PAGES: Final = ("/", "/adapters", "/keys", "/requests", "/usage", "/billing", "/playground", "/admin", "/admin/tenants")
LCP_MS: Final = 1_800
SHIFT: Final = 0.02
FIRST_BYTES: Final = 100_000
LATER_BYTES: Final = 30_000
_LINE: Final = {"offline": False, "latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 1.6e6 / 8}
_SETTLE_MS: Final = 1_500


def measured(browser: Any, platform: Demonstration, path: str) -> list[float]:
    """Paint in milliseconds and shift of a first view, its bytes, and those of a later view."""
    person = platform.operator if path.startswith("/admin") else platform.owner
    with view(browser, platform.api.url, person) as shown:
        line = shown.page.context.new_cdp_session(shown.page)
        sizes: list[float] = []
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", _LINE)
        line.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        line.on("Network.loadingFinished", lambda ended: sizes.append(ended["encodedDataLength"]))
        shown.open(path)
        shown.page.wait_for_timeout(_SETTLE_MS)
        seen, first = shown.page.evaluate("() => checks.seen"), sum(sizes)
        sizes.clear()
        shown.open("/admin/fleet" if path.startswith("/admin") else "/limits")
        return [seen["lcp"], seen["shift"], first, sum(sizes)]


@click.command()
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(out: Path | None) -> None:
    """Measure the pages and print each with its goals."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    goals, seen = {}, []
    with standing_alone() as platform, chromium() as browser:
        for path in PAGES:
            seen += measured(browser, platform, path)
            goals |= {
                f"{path}: largest contentful paint, ms": ("<=", LCP_MS),
                f"{path}: layout shift": ("<=", SHIFT),
                f"{path}: bytes of the first view": ("<=", FIRST_BYTES),
                f"{path}: bytes of the next page": ("<=", LATER_BYTES),
            }
    rows = judged(goals, seen)
    if out is not None:
        out.write_text(json.dumps(rows, indent=2) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
