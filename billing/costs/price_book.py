"""The dated tables that an admin fills: what replicas cost, and what other providers charge. Insert-only."""

from typing import Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.costs.break_even import DatedOutsidePrice
from billing.costs.models import OutsidePriceRow, ReplicaRateRow
from billing.costs.rates import MS_PER_HOUR, DatedRate
from core import clock
from core.db import database_now
from core.errors import Conflict
from core.periods import aware

# The last stored hour whose cost is of the same rates. An hour is of its pool's when that has a rate at its beginning.
_LAST_HOUR: Final = sa.text("""
SELECT max(h.hour_ms) FROM cost_hours h
WHERE h.base_model = :base_model AND h.rank_max = :rank_max AND (h.pool = :pool OR (:pool = '' AND NOT EXISTS (
    SELECT FROM replica_rates p
    WHERE p.base_model = h.base_model AND p.rank_max = h.rank_max AND p.pool = h.pool
        AND date_trunc('milliseconds', p.effective_from)
            <= 'epoch'::timestamptz + h.hour_ms * interval '1 millisecond'
)))
""")


def add_rate(session: Session, rate: DatedRate) -> DatedRate:
    """Add a rate of a pool or a placement group. Raises Conflict when it would change an hour whose cost is shared out
    already, or when there is a rate of the same from that instant on.
    """
    rate = msgspec.structs.replace(rate, effective_from=aware(rate.effective_from, "effective_from"))
    allocated = session.connection().execute(_LAST_HOUR, msgspec.structs.asdict(rate)).scalar_one()
    if allocated is not None and clock.to_ms(rate.effective_from) < allocated + MS_PER_HOUR:
        raise Conflict(
            f"effective_from: costs at this rate are shared out up to "
            f"{clock.from_ms(allocated + MS_PER_HOUR).isoformat()}; use that instant or a later one.",
            code="rate_in_allocated_time",
            param="effective_from",
        )
    if session.get(ReplicaRateRow, (rate.base_model, rate.rank_max, rate.pool, rate.effective_from)) is not None:
        raise Conflict(
            "effective_from: these replicas have a rate from this instant on; use a later one.",
            code="rate_exists",
            param="effective_from",
        )
    session.add(ReplicaRateRow(**msgspec.structs.asdict(rate), created_at=database_now(session)))
    session.flush()
    return rate


def list_rates(session: Session) -> list[DatedRate]:
    """All rates, by placement group and pool and in the order of time."""
    columns = (
        ReplicaRateRow.base_model,
        ReplicaRateRow.rank_max,
        ReplicaRateRow.pool,
        ReplicaRateRow.effective_from,
    )
    rows = session.exec(select(ReplicaRateRow).order_by(*(col(column) for column in columns))).all()
    return msgspec.convert(rows, list[DatedRate], from_attributes=True)


def add_outside_price(session: Session, price: DatedOutsidePrice) -> DatedOutsidePrice:
    """Add an outside price. Raises Conflict when the provider has one for that model, day and currency."""
    key = (price.base_model, price.provider, price.as_of, price.currency)
    if session.get(OutsidePriceRow, key) is not None:
        raise Conflict(
            "as_of: this provider has a price of the model on this day in this currency; use another day.",
            code="outside_price_exists",
            param="as_of",
        )
    session.add(OutsidePriceRow(**msgspec.structs.asdict(price), created_at=database_now(session)))
    session.flush()
    return price


def list_outside_prices(session: Session) -> list[DatedOutsidePrice]:
    """All outside prices by model, provider and day."""
    columns = (OutsidePriceRow.base_model, OutsidePriceRow.provider, OutsidePriceRow.as_of, OutsidePriceRow.currency)
    rows = session.exec(select(OutsidePriceRow).order_by(*(col(column) for column in columns))).all()
    return msgspec.convert(rows, list[DatedOutsidePrice], from_attributes=True)
