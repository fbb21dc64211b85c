"""Where the taxes of an invoice come from. A source is asked before the close's transaction, so it may use the network.
One that cannot answer raises TaxUnavailable, and only that tenant's invoice waits. Fails closed: no invoice is made
without its tax.
"""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Protocol

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col, select

from billing.periods import aware
from billing.tax.calculation import RateInForce, TaxDecision, decide
from billing.tax.models import TaxRate
from billing.tax.parties import Country, Parties
from core.countries import require_country
from core.db import database_now, unit_of_work
from core.errors import Conflict, InvalidRequest, Unavailable


class TaxUnavailable(Unavailable):
    """The taxes of an invoice cannot be decided now."""

    default_code = "tax_unavailable"


class TaxRateView(msgspec.Struct, frozen=True, kw_only=True):
    """A tax of a country from an instant on; a rate of 0 ends it."""

    country: str
    name: str
    rate_ppm: int
    effective_from: datetime


class TaxSource(Protocol):
    """Decides the taxes of an invoice."""

    def decide(self, engine: sa.Engine, parties: Parties, at: datetime) -> TaxDecision:
        """The taxes of an invoice between these parties that is finalized at ``at``. Raises TaxUnavailable."""


class OwnRates:
    """The operator's own table of rates by country. An operator who charges no tax has none."""

    def decide(self, engine: sa.Engine, parties: Parties, at: datetime) -> TaxDecision:
        if parties.seller is None or parties.seller.tax == "none":
            return TaxDecision()
        with unit_of_work(engine) as session:
            return own_taxes(session, parties, at)


def own_taxes(session: Session, parties: Parties, at: datetime) -> TaxDecision:
    """What ``OwnRates`` decides, in the caller's transaction."""
    return decide(parties, at.astimezone(UTC).date(), rates_at(session, at))


def rates_at(session: Session, at: datetime) -> dict[str, list[RateInForce]]:
    """The rates in force, by country. A country that has only ended taxes is there with an empty list."""
    newest = (
        select(TaxRate)
        .where(col(TaxRate.effective_from) <= at)
        .ext(distinct_on(col(TaxRate.country), col(TaxRate.name)))
        .order_by(col(TaxRate.country), col(TaxRate.name), col(TaxRate.effective_from).desc())
    )
    found: defaultdict[str, list[RateInForce]] = defaultdict(list)
    for rate in session.exec(newest):
        rates = found[rate.country]
        if rate.rate_ppm:
            rates.append(RateInForce(name=rate.name, rate_ppm=rate.rate_ppm))
    return dict(found)


def add_rate(
    session: Session, *, country: Country, name: str, rate_ppm: int, effective_from: datetime | None
) -> TaxRateView:
    """Set a tax of a country from an instant on; None means now. A rate of 0 ends it. Raises InvalidRequest for no
    country and for a past instant, and Conflict when another rate begins at the same one.
    """
    require_country(country)
    now = database_now(session)
    begins = now if effective_from is None else aware(effective_from, "effective_from")
    if begins < now:
        raise InvalidRequest(
            f"effective_from is {begins.isoformat()}, in the past. It is {now.isoformat()}.",
            param="effective_from",
        )
    key = (country, name, begins)
    if session.get(TaxRate, key) is not None:
        raise Conflict(
            f"effective_from: a rate of {name} in {country} begins then already; choose another instant.",
            code="tax_rate_exists",
            param="effective_from",
        )
    session.add(TaxRate(country=country, name=name, effective_from=begins, rate_ppm=rate_ppm, created_at=now))
    session.flush()
    return TaxRateView(country=country, name=name, rate_ppm=rate_ppm, effective_from=begins)


def list_rates(session: Session) -> list[TaxRateView]:
    """All rates, by country, tax and start."""
    rows = session.exec(select(TaxRate).order_by(col(TaxRate.country), col(TaxRate.name), col(TaxRate.effective_from)))
    return [msgspec.convert(row, TaxRateView, from_attributes=True) for row in rows]
