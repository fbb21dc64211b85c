"""What counts as a change of the database, on a real Postgres."""

import pytest
import sqlalchemy as sa

from core.loops import DatabaseChanges
from tests.conftest import wait_until

LOOK_S = 0.01


@pytest.fixture
def changes(engine):
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE looked_at (number int)"))
    changes = DatabaseChanges(engine, look_s=LOOK_S)
    yield changes
    changes.stop()
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE looked_at"))


def test_a_commit_is_a_change_and_a_read_is_none(engine, changes):
    wake = changes.subscribe()
    changes.start()
    assert wake.wait(10), "the first look"
    wake.clear()
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT count(*) FROM looked_at"))
    assert not wake.wait(20 * LOOK_S)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO looked_at VALUES (1)"))
    assert wake.wait(10)


def test_the_look_goes_on_after_its_connection_was_lost(engine, changes):
    wake = changes.subscribe()
    changes.start()
    assert wake.wait(10)
    wake.clear()
    with engine.begin() as connection:
        ended = connection.execute(
            sa.text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE :look"),
            {"look": "SELECT pg_current_snapshot()%"},
        ).scalar_one()
    assert ended == 1
    assert wake.wait(10), "the first look of the new connection"
    with engine.begin() as connection:
        wait_until(
            lambda: connection.execute(
                sa.text("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_current_snapshot()%'")
            ).scalar_one(),
            what="a new connection",
        )
