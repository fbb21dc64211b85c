"""Keeps a partition of usage records ready for each of the coming months."""

from typing import Final

import sqlalchemy as sa

from core.db import unit_of_work

_MONTHS_AHEAD: Final = 3


def add_partitions(engine: sa.Engine) -> None:
    """Add the missing partitions of this month and the next three. Without one, records go to the default partition."""
    with unit_of_work(engine) as session:
        session.connection().execute(
            sa.text("SELECT billing_add_usage_partitions(now(), :months)"), {"months": _MONTHS_AHEAD}
        )
