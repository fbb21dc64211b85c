"""The dated tables that an admin fills: what replicas of a pool cost, and what other providers charge. Insert-only."""

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.costs.break_even import DatedOutsidePrice
from billing.costs.models import CostHour, OutsidePriceRow, PoolRateRow
from billing.costs.rates import MS_PER_HOUR, DatedRate
from core import clock
from core.db import database_now
from core.errors import Conflict
from core.periods import aware


def add_rate(session: Session, rate: DatedRate) -> DatedRate:
    """Add a pool's rate. Raises Conflict when it would change an hour whose cost is shared out already, or when the
    pool has a rate from that instant on.
    """
    rate = msgspec.structs.replace(rate, effective_from=aware(rate.effective_from, "effective_from"))
    allocated = session.exec(
        select(sa.func.max(CostHour.hour_ms)).where(
            col(CostHour.base_model) == rate.base_model, col(CostHour.rank_max) == rate.rank_max
        )
    ).one()
    if allocated is not None and clock.to_ms(rate.effective_from) < allocated + MS_PER_HOUR:
        raise Conflict(
            f"effective_from: the pool's costs are shared out up to "
            f"{clock.from_ms(allocated + MS_PER_HOUR).isoformat()}; use that instant or a later one.",
            code="rate_in_allocated_time",
            param="effective_from",
        )
    if session.get(PoolRateRow, (rate.base_model, rate.rank_max, rate.effective_from)) is not None:
        raise Conflict(
            "effective_from: the pool has a rate from this instant on; use a later one.",
            code="rate_exists",
            param="effective_from",
        )
    session.add(PoolRateRow(**msgspec.structs.asdict(rate), created_at=database_now(session)))
    session.flush()
    return rate


def list_rates(session: Session) -> list[DatedRate]:
    """All rates, by pool and in the order of time."""
    columns = (PoolRateRow.base_model, PoolRateRow.rank_max, PoolRateRow.effective_from)
    rows = session.exec(select(PoolRateRow).order_by(*(col(column) for column in columns))).all()
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
