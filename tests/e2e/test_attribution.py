"""On a real engine: what two tenants are charged for a joint run is near what each of them really causes."""

import json
import subprocess
import sys

import pytest

from tenora.settings import StackSettings
from tests.fixtures.late_import import LateModule

attribution = LateModule("benchmarks.attribution")
pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.quiet]


@pytest.mark.scenario(180)
def test_shares_of_a_joint_run_are_near_the_shapley_values_of_measured_busy_times(tmp_path, no_replica):
    out = tmp_path / "errors.json"
    command = [sys.executable, "-m", "benchmarks.attribution", "--rounds", "3", "--home", StackSettings().root]
    done = subprocess.run([*command, "--json", out], capture_output=True, text=True, timeout=1_700, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    assert json.loads(out.read_text())["worst"] <= attribution.ERROR_MAX
