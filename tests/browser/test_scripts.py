"""The console's own scripts are typed, and stay small."""

import subprocess

import pytest

from tests.browser.chromium import TOOLS

ASSETS = TOOLS.parent / "control_plane" / "console" / "assets"
LINES_MAX = 2_000


@pytest.mark.browser
def test_the_types_of_the_scripts_agree():
    scripts = sorted(map(str, ASSETS.glob("*.js")))
    flags = "--noEmit --allowJs --checkJs --strict --target es2024 --module es2022 --moduleDetection force"
    flags += " --lib es2024,dom,dom.iterable"
    found = subprocess.run(
        ["node", str(TOOLS / "node_modules/typescript/bin/tsc"), *flags.split(), *scripts],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_scripts_and_styles_stay_small():
    lines = sum(len(path.read_text().splitlines()) for path in ASSETS.iterdir() if path.suffix in (".js", ".css"))
    assert lines <= LINES_MAX
