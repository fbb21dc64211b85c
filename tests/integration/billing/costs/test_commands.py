"""``python -m billing fit-costs`` and ``allocate-costs``, as an operator runs them."""

import os
import subprocess

import pytest

from tests.fixtures import fork_server
from tests.integration.billing.costs.test_report import busy_windows


@pytest.fixture
def billing(costs, postgres_settings, redis_settings):
    def run(command: str) -> subprocess.CompletedProcess:
        environment = os.environ | {
            "TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn,
            "TENORA_REDIS_URL": redis_settings.redis_url,
            "TENORA_COST_ALLOCATION_DELAY_S": "0",
        }
        return fork_server.run("billing", command, env=environment)

    return run


def test_a_fit_is_printed_with_its_error_and_stored(costs, billing):
    costs.store(*busy_windows(costs, 100))
    done = billing("fit-costs")
    assert done.returncode == 0, done.stderr
    assert "100 windows, 20 held out: median error 0.0 %" in done.stdout
    assert costs.stage.value("SELECT count(*) FROM cost_functions") == 1


def test_a_fit_without_windows_says_how_to_get_some(billing):
    done = billing("fit-costs")
    assert (done.returncode, "benchmarks.calibration" in done.stderr) == (1, True)


def test_hours_are_shared_out_on_demand_and_a_missing_rate_is_named(costs, billing):
    costs.store(costs.window(0, 10, final=True))
    refused = billing("allocate-costs")
    assert (refused.returncode, "rep_1 have no rate" in refused.stderr) == (1, True)
    costs.rate()
    assert billing("allocate-costs").stdout == "1 hours of replicas shared out\n"
    assert costs.rows() == {"idle": 10_000_000}
