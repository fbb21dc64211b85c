"""Billing's migration goes up and down and leaves nothing behind."""

import secrets

import sqlalchemy as sa
from alembic import command

from core import db
from tests.conftest import alembic_config, create_database

FUNCTIONS = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'billing_%'"


def test_the_migration_creates_and_drops_the_tables_and_their_guards(postgres_server):
    settings = create_database(postgres_server, f"migration_{secrets.token_hex(6)}")
    config = alembic_config(settings)
    engine = db.connect(settings)

    def found() -> tuple[set[str], int]:
        with engine.connect() as connection:
            return set(sa.inspect(connection).get_table_names()), connection.execute(sa.text(FUNCTIONS)).scalar_one()

    command.upgrade(config, "2026_11_20_0600")
    before = found()
    command.upgrade(config, "2026_11_20_0610")
    tables, functions = found()
    assert {"usage_records", "entries", "transfers", "invoices", "invoice_lines", "price_versions"} < tables
    assert functions == 8
    command.downgrade(config, "2026_11_20_0600")
    assert found() == before
    command.upgrade(config, "2026_11_20_0610")
    assert found() == (tables, functions)
    engine.dispose()
