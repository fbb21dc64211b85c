"""The table of engines' own counts, kept by engine process and hour, so that they outlive Redis."""

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from billing.models import Instant


class EngineHour(SQLModel, table=True):
    """What one engine process had counted since its start at its last report in an hour (UTC). Counts only grow.

    What it counted within an hour is the difference to its row of an earlier hour.
    """

    __tablename__ = "engine_counts"
    __table_args__ = (
        sa.CheckConstraint(
            "prompt_tokens >= probe_prompt_tokens AND generation_tokens >= probe_generation_tokens"
            " AND probe_prompt_tokens >= 0 AND probe_generation_tokens >= 0 AND cached_prompt_tokens >= 0",
            name="counts_possible",
        ),
    )

    replica_id: str = Field(primary_key=True)
    boot_id: str = Field(primary_key=True)
    hour: datetime = Field(primary_key=True, sa_type=Instant)
    prompt_tokens: int = Field(sa_type=sa.BigInteger)
    generation_tokens: int = Field(sa_type=sa.BigInteger)
    probe_prompt_tokens: int = Field(sa_type=sa.BigInteger)
    probe_generation_tokens: int = Field(sa_type=sa.BigInteger)
    cached_prompt_tokens: int = Field(sa_type=sa.BigInteger)
    reported_at: datetime = Field(sa_type=Instant)
