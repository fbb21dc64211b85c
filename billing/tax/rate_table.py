"""The operator's table of tax rates: one rate for each country at a time, which every line of an invoice has.

What Tenora sells is of one tax class, services supplied electronically. So a second rate of a country is refused while
the first one is in force; rates are never added up. An operator who charges no tax has no rates.
"""

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col, select

from billing.locks import serialize_decision
from billing.tax.calculation import RateInForce, TaxDecision, decide
from billing.tax.models import TaxRate
from billing.tax.parties import Country, Parties
from core import fields
from core.countries import require_country
from core.db import database_now
from core.errors import Conflict, InvalidRequest
from core.periods import aware


class TaxRateView(msgspec.Struct, frozen=True, kw_only=True):
    """A tax of a country from an instant on; a rate of 0 ends it."""

    country: Annotated[str, fields.COUNTRY]
    name: Annotated[str, fields.NAME]
    rate_ppm: Annotated[int, fields.RATE_PPM]
    effective_from: Annotated[datetime, fields.EFFECTIVE_FROM]


def tax_between(session: Session, parties: Parties, at: datetime) -> TaxDecision:
    """The tax of an invoice between these parties that is finalized at ``at``."""
    if parties.seller is None or parties.seller.tax == "none":
        return TaxDecision()
    return decide(parties, at.astimezone(UTC).date(), _rates_at(session, at))


def _rates_at(session: Session, at: datetime) -> dict[str, RateInForce | None]:
    """The rate in force of each country. A country whose taxes have all ended is there with None."""
    newest = (
        select(TaxRate)
        .where(col(TaxRate.effective_from) <= at)
        .ext(distinct_on(col(TaxRate.country), col(TaxRate.name)))
        .order_by(col(TaxRate.country), col(TaxRate.name), col(TaxRate.effective_from).desc())
    )
    found: dict[str, RateInForce | None] = {}
    for rate in session.exec(newest):
        in_force = RateInForce(name=rate.name, rate_ppm=rate.rate_ppm) if rate.rate_ppm else None
        found[rate.country] = found.get(rate.country) or in_force
    return found


def add_rate(
    session: Session, *, country: Country, name: str, rate_ppm: int, effective_from: datetime | None
) -> TaxRateView:
    """Set the tax of a country from an instant on; None means now. A rate of 0 ends it. Raises InvalidRequest for no
    country and for a past instant, and Conflict when another rate begins at the same one, or another tax of the country
    is in force then or begins later.
    """
    require_country(country)
    serialize_decision(session, f"the tax of {country}")
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
    if rate_ppm:
        _require_no_other(session, country, name, begins)
    session.add(TaxRate(country=country, name=name, effective_from=begins, rate_ppm=rate_ppm, created_at=now))
    session.flush()
    return TaxRateView(country=country, name=name, rate_ppm=rate_ppm, effective_from=begins)


def _require_no_other(session: Session, country: str, name: str, begins: datetime) -> None:
    """Refuse a second tax: one that is in force at ``begins``, or is to begin later, under another name."""
    others = select(TaxRate).where(TaxRate.country == country, TaxRate.name != name)
    in_time_order = others.order_by(col(TaxRate.name), col(TaxRate.effective_from))
    last: dict[str, TaxRate] = {}
    for rate in session.exec(in_time_order):
        before = last.get(rate.name)
        if before is None or rate.effective_from <= begins or not before.rate_ppm:
            last[rate.name] = rate
    other = next((rate for rate in last.values() if rate.rate_ppm), None)
    if other is not None:
        raise Conflict(
            f"name: {country} has the tax {other.name} of {other.rate_ppm} millionths from "
            f"{other.effective_from.isoformat()} on. Every line has one rate, and rates are not added up. Change "
            f"{other.name}, or end it first with a rate of 0.",
            code="second_tax_rate",
            param="name",
        )


def list_rates(session: Session) -> list[TaxRateView]:
    """All rates, by country, tax and start."""
    rows = session.exec(select(TaxRate).order_by(col(TaxRate.country), col(TaxRate.name), col(TaxRate.effective_from)))
    return [msgspec.convert(row, TaxRateView, from_attributes=True) for row in rows]
