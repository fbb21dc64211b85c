"""The gateway's benchmarks run: every answer arrives as sent, and each one is settled."""

import json
import subprocess
import sys

import pytest

from tests.fixtures.processes import ROOT

pytestmark = pytest.mark.soak


def run(module: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )


def test_the_gateway_is_measured_against_a_bare_relay(tmp_path):
    out = tmp_path / "gateway.json"
    done = run("benchmarks.gateway", "--quick", "--json", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert {row["contender"] for row in result["rows"]} == {"tenora", "relay"}
    for row in result["rows"]:
        assert row["errors"] == 0, done.stderr[-3000:]
        assert row["events_per_stream"] == [31]
        assert row["paced_streams_per_s"] > 0
    assert result["ledger"]["usage_events"] == result["ledger"]["answered"] > 0


def test_many_streams_stay_open_and_every_one_is_settled(tmp_path):
    out = tmp_path / "streams.json"
    done = run(
        "benchmarks.streams",
        "--streams",
        "300",
        "--ticks",
        "2",
        "--ramp",
        "1",
        "--duration",
        "3",
        "--json",
        str(out),
    )
    assert out.exists(), done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert result["errors"] == 0, result
    assert result["settled"] == result["ended"] >= 300
