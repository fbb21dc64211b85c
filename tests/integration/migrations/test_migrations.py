"""The migrations as a whole: one linear history, up, down and up again, equal to the tables in the code."""

import re
import secrets
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from core import db
from tests.conftest import alembic_config, create_database

VERSIONS = Path(__file__).parents[3] / "migrations" / "versions"


@pytest.fixture
def empty(postgres_server):
    return create_database(postgres_server, f"stairway_{secrets.token_hex(4)}")


def revisions(settings) -> list[str]:
    script = ScriptDirectory.from_config(alembic_config(settings))
    return [each.revision for each in reversed(list(script.walk_revisions()))]


def test_there_is_one_head(empty):
    assert len(ScriptDirectory.from_config(alembic_config(empty)).get_heads()) == 1


def test_every_migration_goes_up_and_down_and_up_again(empty):
    config = alembic_config(empty)
    command.upgrade(config, "head")
    command.downgrade(config, "base")
    engine = db.connect(empty)
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        functions = connection.exec_driver_sql(
            "SELECT proname FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = 'public'"
        ).all()
    engine.dispose()
    assert (tables, functions) == (["alembic_version"], [])
    command.upgrade(config, "head")


def test_the_tables_in_the_code_equal_those_of_the_migrations(postgres_settings):
    command.check(alembic_config(postgres_settings))


def test_files_are_named_by_their_date_and_read_as_history(empty):
    files = sorted(path.name for path in VERSIONS.glob("*.py"))
    pattern = re.compile(r"(\d{4}_\d\d_\d\d_\d{4})_[a-z0-9_]+\.py")
    assert all(pattern.fullmatch(name) for name in files), files
    assert [pattern.fullmatch(name)[1] for name in files] == revisions(empty), (
        "the files are in the order in which they run"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO api_keys VALUES ('key_1', NULL, 'n', 'h', 'r', ARRAY['inference'], now(), NULL)",
        "INSERT INTO published_snapshot VALUES (2, 'e', 1)",
        "INSERT INTO tenants VALUES ('tn_1', 'n', 'pl_none', 'active', '{}', now())",
        "INSERT INTO tenants VALUES ('tn_1', 'n', 'pl_1', 'gone', '{}', now())",
    ],
)
def test_the_database_refuses_invalid_rows(engine, statement):
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO plans VALUES ('pl_1', 'p', now())")
    with pytest.raises(DBAPIError), engine.begin() as connection:
        connection.exec_driver_sql(statement)
