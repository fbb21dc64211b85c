"""The short version of ``make chaos``: two processes killed under fifty streams, and the quick rows of the matrix."""

import json

import pytest

from tests.chaos import kills, matrix, standing
from tests.chaos.platform import platform
from tests.chaos.verdict import emitted, judge
from tests.conftest import create_database


@pytest.fixture(scope="module")
def furnished(postgres_server, migrated_template, tmp_path_factory):
    database = create_database(postgres_server, "chaos", migrated_template)
    with platform(tmp_path_factory.mktemp("chaos"), database) as made:
        standing.furnish(made)
        yield made


@pytest.mark.parametrize("victim", ["gateway", "valkey"])
def test_a_process_killed_under_fifty_streams_costs_nobody_anything(furnished, victim):
    standing.heal(furnished)
    verdict = kills.run(furnished, kills.Kill(victim, seed=1), furnished.tenant())
    verdict.check()
    assert verdict.lost == verdict.duplicated == 0
    assert verdict.requests > 0


@pytest.mark.parametrize("row", [row for row in matrix.ROWS if row.short], ids=lambda row: row.id)
def test_each_quick_row_of_the_fault_matrix_holds(furnished, row):
    assert matrix.run(furnished, row)


def test_the_verdict_sees_what_nobody_was_billed_for(furnished):
    before = frozenset(emitted(furnished))
    with furnished.witnesses["rep_one"].journal_path.open("a") as journal:
        journal.write(json.dumps({"request": "req_unbilled", "model": "m", "prompt": 7}) + "\n")
        journal.writelines(json.dumps({"request": "req_unbilled", "token": "x"}) + "\n" for _ in range(65))
    verdict = judge(furnished, before)
    assert (verdict.lost, verdict.tail_tokens) == (1, 65)
    assert "req_unbilled" in verdict.problems[0]
