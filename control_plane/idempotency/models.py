"""Table of the idempotency room: the response to each ``Idempotency-Key``, kept for a limited time and without
secrets.
"""

from datetime import datetime

from sqlalchemy import DateTime, LargeBinary, Text
from sqlmodel import Field, SQLModel

from core import clock


class IdempotentResponse(SQLModel, table=True):
    """One answered POST. ``caller`` is a tenant id or ``admin``, so two callers may use the same key."""

    __tablename__ = "idempotent_responses"

    caller: str = Field(primary_key=True, sa_type=Text)
    key: str = Field(primary_key=True, sa_type=Text)
    request_sha256: str = Field(sa_type=Text)
    status_code: int | None = Field(default=None)
    body: bytes | None = Field(default=None, sa_type=LargeBinary)
    created_at: datetime = Field(default_factory=clock.now, index=True, sa_type=DateTime(timezone=True))
