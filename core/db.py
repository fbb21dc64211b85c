"""Postgres for the packages that may use it: the engine, the session factory and the one place that commits.

Forbidden to ``data_plane`` and ``adapters``. One request, job or stream batch is one transaction.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import DateTime, Engine, create_engine, event, func
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped
from sqlalchemy.sql.elements import SQLCoreOperations
from sqlmodel import Session, SQLModel, select

from core.settings import PostgresSettings

Rows = TypeVar("Rows", bound=sa.Select[Any])

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
SQLModel.metadata.naming_convention = NAMING
Instant: Final = DateTime(timezone=True)
"""The type of columns that hold instants."""

LATE_COMMITS: Final = timedelta(minutes=1)
"""Transactions are expected to be over by then. Who looks for what was written since the last look reads so much of the
time before it again, because what commits late has an earlier time of writing.
"""


def connect(settings: PostgresSettings) -> Engine:
    """A pooled engine whose sessions wait at most 5 s for a lock and 30 s for a statement."""
    engine = create_engine(
        settings.postgres_dsn, pool_size=settings.postgres_pool_max, max_overflow=0, pool_timeout=10, pool_pre_ping=True
    )

    @event.listens_for(engine, "connect")
    def _limit(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'; SET statement_timeout = '30s'; SET timezone = 'UTC'")
        connection.commit()

    return engine


@contextmanager
def unit_of_work(engine: Engine) -> Iterator[Session]:
    """A session whose work is committed when the block ends and rolled back when it raises."""
    with Session(engine, expire_on_commit=False) as session:
        yield session
        session.commit()


@contextmanager
def exclusively(engine: Engine, lock: int) -> Iterator[bool]:
    """Yields whether this process holds the advisory lock of this number while the block runs. The lock belongs to the
    connection, so no transaction stays open, and Postgres releases it when the process dies.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        held = bool(connection.execute(sa.text("SELECT pg_try_advisory_lock(:lock)"), {"lock": lock}).scalar_one())
        try:
            yield held
        finally:
            if held:
                connection.execute(sa.text("SELECT pg_advisory_unlock(:lock)"), {"lock": lock})


def among(column: SQLCoreOperations[str], values: Collection[str]) -> sa.ColumnElement[bool]:
    """Whether a column has one of these values, as one parameter: IN has one for each, of which thousands are slow."""
    return column == sa.any_(sa.literal(list(values), ARRAY(sa.Text)))


def total(values: SQLCoreOperations[int] | int) -> sa.ColumnElement[int]:
    """The sum of a column of integers, 0 without rows. Postgres sums bigint as numeric; our sums fit a bigint."""
    return sa.cast(func.coalesce(func.sum(values), 0), sa.BigInteger)


def newest_first(rows: Rows, ids: Mapped[str], *, after: str | None, limit: int) -> Rows:
    """A page of rows by their ids, which are in the order of time. ``after`` is the last id of the page before."""
    return (rows if after is None else rows.where(ids < after)).order_by(ids.desc()).limit(limit)


DatabaseClock = Callable[[Session], datetime]
"""``database_now``, or in tests a clock that they move."""


def database_now(session: Session) -> datetime:
    """Postgres's wall clock at this statement, not at the start of the transaction. Periods, prices and leases use it,
    so that all processes agree. Measure durations with the monotonic clock instead.
    """
    return session.exec(select(func.clock_timestamp(type_=Instant))).one()
