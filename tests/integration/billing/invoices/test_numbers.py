"""Numbers have no gaps and no doubles, whatever happens to the processes that give them."""

import os
import random
import signal
import sys
import time

import pytest

from billing.invoices.verification import verify
from core.db import unit_of_work
from tests.fixtures import fork_server


@pytest.mark.scenario(108)
@pytest.mark.scenario(164)
@pytest.mark.parametrize(("closers", "kills"), [(2, 1), pytest.param(8, 3, marks=pytest.mark.soak)])
def test_closes_of_which_some_are_killed_leave_numbers_without_gap_or_double(
    stage, postgres_settings, tmp_path, closers, kills
):
    tenants = [stage.tenant() for _ in range(40)]
    stage.bill(*(stage.event(tenant, output_tokens=100_000) for tenant in tenants))
    env = os.environ | {"TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn, "TENORA_POSTGRES_POOL_MAX": "2"}
    closing = [sys.executable, "-m", "tests.fixtures.killed_closes", stage.now().isoformat()]
    with (tmp_path / "log").open("ab") as log:
        processes = [fork_server.start(closing, env, log) for _ in range(closers)]
    dice = random.Random(108)
    deadline = time.monotonic() + 60
    for number, process in enumerate(processes[:kills]):  # each dies with some of the invoices made
        while stage.value("SELECT count(*) FROM invoices") < 5 + 10 * number and time.monotonic() < deadline:
            time.sleep(dice.random() / 100)
        process.kill()
    ended = [process.wait(120) for process in processes]
    assert ended[:kills].count(-signal.SIGKILL) >= 1
    stage.close()  # what a killed process held when the others came by
    numbers = [row["number"] for row in stage.rows("SELECT number FROM documents ORDER BY position")]
    assert numbers == list(range(1, len(tenants) + 1))
    assert stage.value("SELECT count(DISTINCT tenant_id) FROM invoices") == len(tenants)
    assert stage.value("SELECT coalesce(sum(amount_nanos), 0) FROM entries") == 0
    with unit_of_work(stage.engine) as session:
        assert verify(session).findings == []
