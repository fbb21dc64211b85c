"""The table of the fleet room. Replicas themselves are in Redis only."""

from datetime import datetime

from sqlalchemy import Text
from sqlmodel import DateTime, Field, SQLModel

from core import clock


class CordonRow(SQLModel, table=True):
    """A replica or a node that gets no requests until an admin lifts the cordon."""

    __tablename__ = "cordons"

    kind: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    reason: str = Field(sa_type=Text)
    created_at: datetime = Field(default_factory=clock.now, sa_type=DateTime(timezone=True))
