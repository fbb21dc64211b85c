"""The true-up of a commitment: what is missing to the least that charges of a period, or of twelve months, come to.

Pure: no database. A commitment counts everything that is charged after discounts, and its own share of the period.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from billing.charges.lines import DraftInvoiceLine, amount_line
from billing.charges.proration import PricedInterval, TenantTerms, prorated
from billing.charges.state import PeriodState
from billing.subscriptions.calendar import BillingCalendar
from core.periods import Period


class TrueUp(NamedTuple):
    """The lines of a true-up, and the state with what counts towards commitments."""

    lines: list[DraftInvoiceLine]
    state: PeriodState


def true_up(terms: TenantTerms, billed: Period, charged_nanos: int, state: PeriodState, *, closing: bool) -> TrueUp:
    """The true-up of commitments that end with ``billed``, for charges of ``charged_nanos`` in it."""
    state = _counted(terms, billed, charged_nanos, state)
    around = terms.calendars.period_at(billed.start)
    whole = terms.calendars.at(billed.start).period_at(billed.start)
    ended = terms.ended is not None and billed.start < terms.ended <= billed.end
    lines: list[DraftInvoiceLine] = []
    if closing and (ended or around.end == billed.end):
        lines += _missing(terms, around, whole, "period", state.charged_nanos)
    if closing and state.year_from is not None:
        calendar = terms.calendars.at(state.year_from)
        year = commitment_year(calendar, state.year_from)
        if ended or year.end <= billed.end:
            lines += _missing(terms, Period(state.year_from, year.end), year, "year", state.year_nanos)
            state = msgspec.structs.replace(state, year_from=None, year_nanos=0)
    return TrueUp(lines, state)


def commitment_year(calendar: BillingCalendar, since: datetime) -> Period:
    """Twelve months from the local day on which a commitment began."""
    anchor = since.astimezone(ZoneInfo(calendar.zone)).date()
    return BillingCalendar(interval="year", zone=calendar.zone, anchor=anchor).period_at(since)


def _counted(terms: TenantTerms, billed: Period, charged_nanos: int, state: PeriodState) -> PeriodState:
    year_from = state.year_from
    if year_from is None and any(_committed(each, "year") for each in terms.intervals(billed)):
        year_from = billed.start
    return msgspec.structs.replace(
        state,
        charged_nanos=state.charged_nanos + charged_nanos,
        year_from=year_from,
        year_nanos=0 if year_from is None else state.year_nanos + charged_nanos,
    )


def _missing(
    terms: TenantTerms, committed: Period, whole: Period, length: Literal["period", "year"], charged_nanos: int
) -> Iterator[DraftInvoiceLine]:
    committed_nanos = prorated(((each, _committed(each, length)) for each in terms.intervals(committed)), whole)
    missing = committed_nanos - charged_nanos
    if committed_nanos and missing > 0:
        yield amount_line("commitment", missing, description="Rest of the commitment", covers=committed)


def _committed(interval: PricedInterval, length: Literal["period", "year"]) -> int:
    card = None if interval.version is None else interval.version.card
    return 0 if card is None or card.commitment_interval != length else card.commitment_nanos
