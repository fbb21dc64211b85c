"""The time that periods and prices go by: Postgres's own, so that every process agrees on it. Durations do not come
from here.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, select


def database_now(session: Session) -> datetime:
    """The database's wall clock at this statement, not at the start of the transaction."""
    return session.exec(select(sa.func.clock_timestamp(type_=sa.DateTime(timezone=True)))).one()
