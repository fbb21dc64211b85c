"""Runs the migrations: one process at a time in the whole cluster, each migration in its own transaction, with short
lock timeouts.
"""

import importlib
import pkgutil

import sqlalchemy as sa
from alembic import context
from sqlmodel import SQLModel

from core import db
from core.settings import PostgresSettings, exit_on_invalid_settings

ADVISORY_LOCK = 7_301_945_118  # any fixed number; it keeps two migrators from running at once

for package in ("control_plane", "billing"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if module.name.endswith("models"):
            importlib.import_module(module.name)


def run() -> None:
    """Bring the database to the wanted revision, alone: a second migrator waits for the first."""
    with exit_on_invalid_settings():
        engine = db.connect(context.config.attributes.get("settings") or PostgresSettings())
    try:
        with engine.connect() as connection:
            connection.execute(sa.text(f"SELECT pg_advisory_lock({ADVISORY_LOCK})"))
            connection.commit()
            try:
                context.configure(
                    connection=connection,
                    target_metadata=SQLModel.metadata,
                    transaction_per_migration=True,
                    compare_type=True,
                    compare_server_default=True,
                )
                with context.begin_transaction():
                    context.run_migrations()
            finally:
                connection.execute(sa.text(f"SELECT pg_advisory_unlock({ADVISORY_LOCK})"))
                connection.commit()
    finally:
        engine.dispose()


run()
