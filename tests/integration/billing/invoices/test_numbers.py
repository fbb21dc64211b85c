"""Numbers have no gaps and no doubles, whatever happens to the processes that give them."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from billing.invoices.verification import verify
from core.db import unit_of_work

CLOSER = """
import sys
from datetime import datetime
import sqlalchemy as sa
from billing.invoicing import closing
from core import db
from core.settings import PostgresSettings

engine = db.connect(PostgresSettings())
print("ready", flush=True)
sys.stdin.readline()
closing.close_all(engine, datetime.fromisoformat(sys.argv[1]), least_cents=0)
"""


def closer(dsn: str, until: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSER, until],
        env={"TENORA_POSTGRES_DSN": dsn, "TENORA_POSTGRES_POOL_MAX": "2", "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.scenario(108)
@pytest.mark.scenario(164)
@pytest.mark.parametrize(("closers", "kills"), [(2, 1), pytest.param(8, 3, marks=pytest.mark.soak)])
def test_closes_of_which_some_are_killed_leave_numbers_without_gap_or_double(stage, postgres_settings, closers, kills):
    tenants = [stage.tenant() for _ in range(40)]
    stage.bill(*(stage.event(tenant, output_tokens=100_000) for tenant in tenants))
    processes = [closer(postgres_settings.postgres_dsn, stage.now().isoformat()) for _ in range(closers)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    dice = random.Random(108)
    deadline = time.monotonic() + 60
    for number, process in enumerate(
        processes[:kills]
    ):  # each dies in the middle: some invoices are made, some are not
        while stage.value("SELECT count(*) FROM invoices") < 5 + 10 * number and time.monotonic() < deadline:
            time.sleep(dice.random() / 100)
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes[:kills]].count(-signal.SIGKILL) >= 1
    stage.close()  # what a killed process held when the others came by
    numbers = [row["number"] for row in stage.rows("SELECT number FROM documents ORDER BY position")]
    assert numbers == list(range(1, len(tenants) + 1))
    assert stage.value("SELECT count(DISTINCT tenant_id) FROM invoices") == len(tenants)
    assert stage.value("SELECT coalesce(sum(amount_nanos), 0) FROM entries") == 0
    with unit_of_work(stage.engine) as session:
        assert verify(session).findings == []


def test_an_invoice_without_a_number_cannot_be_committed(stage):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    with pytest.raises(Exception, match="has no number"):
        stage.change(
            "INSERT INTO invoices SELECT (jsonb_populate_record(i, jsonb_build_object('id', 'inv_x', 'amount_nanos', 0,"
            " 'tenant_id', 'tn_x', 'net_cents', 0, 'total_cents', 0))).* FROM invoices i"
        )


def test_a_number_that_does_not_follow_is_refused(stage):
    stage.bill(stage.event(stage.tenant()))
    stage.close()
    with pytest.raises(Exception, match="does not follow"):
        stage.change(
            "INSERT INTO documents SELECT position + 1, kind, number + 2, 'inv_x', tenant_id, content_format,"
            " content_sha256, sha256, sha256, now() FROM documents"
        )
