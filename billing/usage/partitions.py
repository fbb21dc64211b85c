"""Keeps a partition of usage records ready for each of the coming months."""

from typing import Final

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import IntegrityError

from core.db import unit_of_work

_MONTHS_AHEAD: Final = 3

_log = structlog.get_logger()


def add_partitions(engine: sa.Engine) -> None:
    """Add the missing partitions of this month and the next three. Without one, records go to the default partition.

    A month of which records are in the default partition already, because a clock was far off, stays there: that is
    slower and changes no amount. The other months get theirs.
    """
    for month in range(_MONTHS_AHEAD + 1):
        try:
            with unit_of_work(engine) as session:
                session.connection().execute(
                    sa.text("SELECT billing_add_usage_partitions(now() + make_interval(months => :month), :month)"),
                    {"month": month},
                )
        except IntegrityError as error:
            _log.warning("a month of usage stays in the default partition", months_ahead=month, error=str(error.orig))
