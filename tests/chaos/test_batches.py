"""A short version of the kills under a batch's lines in ``make chaos``."""

import pytest

from tests.chaos import batches, control

KILLS = 14  # of each process: 42 in all


@pytest.fixture(scope="module")
def plane(postgres_server, tmp_path_factory):
    with control.plane(tmp_path_factory.mktemp("chaos") / "control", postgres_server) as made:
        yield made


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", batches.VICTIMS)
def test_no_line_of_a_batch_is_lost_or_billed_twice_when_a_process_is_killed(plane, victim):
    total = batches.BatchResult(batches.VICTIMS[victim])
    with batches.batch_process(plane):
        for _ in batches.run(plane, total, seed=0, kills=KILLS):
            pass
    assert total.problems == []
    assert (total.runs, total.lost, total.duplicated) == (KILLS, 0, 0)
    assert total.lines * batches.TOKENS == total.billed_tokens
