"""The start time of the confined child, which is meaningful only on an idle machine."""

import time

import pytest

from tests.unit.adapters.sandbox.test_parent import validate_folder

pytestmark = pytest.mark.quiet


def test_the_child_starts_in_well_under_a_second(tmp_path):
    durations = []
    for attempt in range(3):
        (tmp_path / f"{attempt}").mkdir()
        started = time.monotonic()
        validate_folder(tmp_path / f"{attempt}")
        durations.append(time.monotonic() - started)
    assert min(durations) < 0.5
