"""What a period costs before credits and tax, on the ledger and as lines: usage, tiers, included usage, fees, discounts
and commitments (``billing.charges.statement`` says in which order).
"""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlmodel import Session

from billing.charges.adjustments import Owed, post_difference
from billing.charges.contract import Contract, read_contract, read_state, read_used, split
from billing.charges.lines import DraftInvoiceLine, merged
from billing.charges.models import StoredPeriodState
from billing.charges.state import PeriodState
from billing.charges.statement import PeriodUse, state_charges
from billing.subscriptions.billed_until import billed_until_of
from core.periods import Period


def period_lines(session: Session, tenant_id: str, period: Period, *, closing: bool) -> list[DraftInvoiceLine]:
    """The lines of a period without cents, before credits and tax. The ledger has their sum as unbilled afterwards:
    the difference to what was posted before is posted as an adjustment.

    With ``closing`` the period ends with these lines: they have the true-up of a commitment, and what the period
    leaves to the next one is stored. The caller holds the tenant's subscription.
    """
    lines, _ = adjust(session, tenant_id, period, closing=closing)
    return lines


def adjust(
    session: Session, tenant_id: str, period: Period, *, closing: bool = False
) -> tuple[list[DraftInvoiceLine], int]:
    """Like ``period_lines``, with the amount that was posted now."""
    contract = read_contract(session, tenant_id)
    state = _state_at(session, tenant_id, contract, period, closing=closing)
    charged = charge_parts(session, tenant_id, contract, period, state, closing=closing)
    if closing:
        _store(session, tenant_id, contract, period, before=state, after=charged.state)
    return charged.lines, post_difference(session, tenant_id, period, charged.owed)


class PeriodCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a period, their sums and what they leave."""

    lines: list[DraftInvoiceLine]
    owed: Owed
    state: PeriodState


def charge_parts(
    session: Session, tenant_id: str, contract: Contract, period: Period, state: PeriodState, *, closing: bool
) -> PeriodCharge:
    """The charge of a period, which may span several periods of the tenant's calendar. Writes nothing."""
    parts = list(split(contract.terms.calendars, period))
    return charge_used(
        contract, [(part, read_used(session, tenant_id, contract, part)) for part in parts], state, closing=closing
    )


def charge_used(
    contract: Contract, parts: Sequence[tuple[Period, PeriodUse]], state: PeriodState, *, closing: bool
) -> PeriodCharge:
    """The charge of parts, one after the other. Pure."""
    lines: list[DraftInvoiceLine] = []
    usage_nanos = recorded_nanos = 0
    for part, used in parts:
        statement = state_charges(contract.terms, contract.discounts, used, state, part, closing=closing)
        lines += statement.lines
        usage_nanos += statement.usage_nanos
        recorded_nanos += sum(total.recorded_nanos for total in used.totals)
        state = statement.state
    owed = Owed(sum(line.amount_nanos for line in lines), usage_nanos, recorded_nanos)
    return PeriodCharge(lines=merged(lines) if len(parts) > 1 else lines, owed=owed, state=state)


def _state_at(session: Session, tenant_id: str, contract: Contract, period: Period, *, closing: bool) -> PeriodState:
    """What the invoices before a period leave to it. While the period before is still open, it is charged for this."""
    state = read_state(session, tenant_id, period.start)
    if closing:
        return state
    open_since = billed_until_of(session, tenant_id)
    if open_since is None or open_since >= period.start:
        return state
    return charge_parts(session, tenant_id, contract, Period(open_since, period.start), state, closing=True).state


def _store(
    session: Session, tenant_id: str, contract: Contract, period: Period, *, before: PeriodState, after: PeriodState
) -> None:
    """Store what a period leaves, unless it is nothing, as before. In the middle of the calendar's period it is never
    nothing.
    """
    whole = contract.terms.calendars.period_at(period.start)
    if after.is_empty() and before.is_empty() and whole.end <= period.end:
        return
    stored = {"tenant_id": tenant_id, "period_end": period.end, "state": msgspec.to_builtins(after)}
    session.exec(sa.insert(StoredPeriodState).values(**stored, created_at=sa.func.clock_timestamp()))
