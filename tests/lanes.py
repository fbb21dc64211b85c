"""Every test, in two lanes side by side, and then alone what asks a real engine, which takes every core.

``python -m tests.lanes``: most tests wait for servers half of their time, and the lanes are about equally long. Each
starts servers of its own. ``pytest`` alone runs the same tests one after the other.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
SPLIT: Final = "integration"  # its folders are shared out; every other folder stays whole
IN_THE_BACKGROUND: Final = {"unit", "fuzz", "integration/adapters", "integration/billing", "integration/tenora"}
ASK_AN_ENGINE: Final = {"e2e", "gpu"}
HOLD_PROMISED_TIMES: Final = {
    "integration/control_plane/test_flips_under_traffic.py",
    "integration/control_plane/test_ready_in_time.py",
}  # of a second or three, with nothing else on the machine


def main() -> int:
    """0 where everything passed, else 1. What the lane in the background says is shown when both have ended."""
    places = {_place(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    background = {place for place in places if place in IN_THE_BACKGROUND or place.endswith(".py")}
    asking = places & ASK_AN_ENGINE
    with tempfile.TemporaryFile() as said:
        beside = subprocess.Popen(_pytest(background), stdout=said, stderr=subprocess.STDOUT)
        try:
            seen = subprocess.call(_pytest(places - background - asking, without=HOLD_PROMISED_TIMES))
        finally:  # also after Ctrl-C, which both lanes have heard: each stops its own servers
            unseen = beside.wait()
        said.seek(0)
        print(said.read().decode(errors="replace"), flush=True)
    alone = subprocess.call(_pytest(asking | HOLD_PROMISED_TIMES))
    return int(any((seen, unseen, alone)))


def _place(path: Path) -> str:
    return "/".join(path.parts[: 2 if path.parts[0] == SPLIT else 1])


def _pytest(places: Iterable[str], without: Iterable[str] = ()) -> list[str]:
    left_out = (f"--ignore={TESTS / place}" for place in sorted(without))
    return [sys.executable, "-m", "pytest", *left_out, *(f"{TESTS / place}" for place in sorted(places))]


if __name__ == "__main__":
    sys.exit(main())
