"""Numbers have no gaps and no doubles, whatever happens to the processes that give them."""

import os
import signal
import sys

import pytest

from billing.invoices.verification import verify
from core.db import unit_of_work
from tests.conftest import wait_until
from tests.fixtures import fork_server
from tests.fixtures.fork_server import ForkedProcess

WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


@pytest.mark.scenario(108)
@pytest.mark.scenario(164)
@pytest.mark.parametrize(("others", "kills"), [(1, 1), pytest.param(5, 3, marks=pytest.mark.soak)])
def test_closes_of_which_some_are_killed_leave_numbers_without_gap_or_double(
    stage, postgres_settings, tmp_path, others, kills
):
    tenants = [stage.tenant() for _ in range(25)]
    stage.bill(*(stage.event(tenant, output_tokens=100_000) for tenant in tenants))
    env = os.environ | {"TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn, "TENORA_POSTGRES_POOL_MAX": "2"}
    closing = [sys.executable, "-m", "tests.fixtures.killed_closes", stage.now().isoformat()]

    def start(name: str, *, stop_at: int = 0) -> ForkedProcess:
        with (tmp_path / name).open("wb") as log:
            return fork_server.start([*closing, str(stop_at)], env, log)

    for number in range(kills):  # each dies with four invoices made and the locks of the fifth
        killed = start(f"killed_{number}", stop_at=5)
        wait_until((tmp_path / f"killed_{number}").read_text, what="the fifth number")
        if number == kills - 1:
            waiting = [start(f"other_{each}") for each in range(others)]
            wait_until(lambda: stage.value(WAITING) == others, what="the others to wait for its locks")
        killed.kill()
        assert killed.wait(20) == -signal.SIGKILL
    assert [process.wait(120) for process in waiting] == [0] * others
    stage.close()  # what a killed process held when the others came by
    numbers = [row["number"] for row in stage.rows("SELECT number FROM documents ORDER BY position")]
    assert numbers == list(range(1, len(tenants) + 1))
    assert stage.value("SELECT count(DISTINCT tenant_id) FROM invoices") == len(tenants)
    assert stage.value("SELECT coalesce(sum(amount_nanos), 0) FROM entries") == 0
    with unit_of_work(stage.engine) as session:
        assert verify(session).findings == []
