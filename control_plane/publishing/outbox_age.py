"""How long the oldest change has waited for publishing: the alarm for a worker that is down or stuck."""

import structlog
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from core.db import unit_of_work

_AGE = text("SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0) FROM outbox")


def outbox_age_s(engine: Engine) -> float:
    """Seconds since the oldest unpublished change was made; 0 without one, NaN while Postgres does not answer."""
    try:
        with unit_of_work(engine) as session:
            return max(0.0, float(session.connection().execute(_AGE).scalar_one()))
    except SQLAlchemyError as error:
        structlog.get_logger().warning("age of the outbox unknown", error=repr(error))
        return float("nan")
