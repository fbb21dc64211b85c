"""The short version of ``make chaos``: each process is killed once, at an instant of its own, under fifty streams."""

import pytest

from tests.chaos import kills
from tests.chaos.platform import platform
from tests.conftest import create_database


@pytest.fixture(scope="module")
def furnished(postgres_server, migrated_template, tmp_path_factory):
    database = create_database(postgres_server, "chaos_kills", migrated_template)
    with platform(tmp_path_factory.mktemp("kills"), database) as made:
        kills.furnish(made)
        yield made


@pytest.mark.parametrize("victim", kills.VICTIMS)
def test_a_process_killed_under_fifty_streams_costs_nobody_anything(furnished, victim):
    verdict = kills.run(furnished, kills.Kill(victim, seed=1), furnished.tenant())
    assert verdict.problems == ()
    assert verdict.lost == verdict.duplicated == 0
    assert verdict.requests > 0
