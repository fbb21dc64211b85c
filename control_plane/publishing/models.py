"""Tables of the publishing room: changes that are not yet published, and the position of the published snapshot."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Text, false
from sqlmodel import Field, SQLModel

from core import clock


class OutboxChange(SQLModel, table=True):
    """One field of a published snapshot that must be read again from its room. Deleted once published. ``bulk`` changes
    are published after all others.
    """

    __tablename__ = "outbox"

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger)
    kind: str = Field(sa_type=Text)
    field: str = Field(sa_type=Text)
    bulk: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))


class PublishedSnapshot(SQLModel, table=True):
    """One row: the epoch and generation that Redis last acknowledged. A Redis that has less has lost data."""

    __tablename__ = "published_snapshot"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: int = Field(default=1, primary_key=True)
    epoch: str = Field(sa_type=Text)
    generation: int = Field(sa_type=BigInteger)
