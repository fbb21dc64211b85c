"""What a period costs before credits and tax, on the ledger and as lines: usage, tiers, included usage, fees, discounts
and commitments (``billing.charges.statement`` says in which order).

Each record is charged the highest price when it arrives. The cost of the period is a pure function of all its records,
and its difference from the ledger is posted as an adjustment. So the adjustments of a period end at the same sum,
however often they are posted.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger
from billing.charges.inputs import Contract, read_adjusted, read_contract, read_state, read_used, split
from billing.charges.lines import DraftInvoiceLine, merged
from billing.charges.models import StoredPeriodState, UsageAdjustment
from billing.charges.state import PeriodState
from billing.charges.statement import PeriodUse, state_charges
from billing.subscriptions.billed_until import billed_until_of
from core import clock
from core.db import among, database_now, total
from core.ids import first_id_of_ms, new_id
from core.periods import Period
from core.spend_windows import WindowBounds

_CLOCKS_APART: Final = timedelta(hours=1)


class Owed(NamedTuple):
    """What a period costs in all, the part that is usage, and what its usage records say that it costs."""

    amount_nanos: int
    usage_nanos: int
    recorded_nanos: int


class PeriodCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a period, their sums and what they leave."""

    lines: list[DraftInvoiceLine]
    owed: Owed
    state: PeriodState


def charge_period(
    session: Session, tenant_id: str, period: Period, *, closing: bool = False
) -> tuple[list[DraftInvoiceLine], int]:
    """The lines of a period without cents, before credits and tax, and the amount that is posted now: the difference
    between their sum, which the ledger has as unbilled afterwards, and what was posted before.

    With ``closing`` the period ends with these lines: they have the true-up of a commitment, and what the period
    leaves to the next one is stored. The caller holds the tenant's subscription.
    """
    contract = read_contract(session, tenant_id)
    state = _state_at(session, tenant_id, contract, period, closing=closing)
    charged = charge_parts(session, tenant_id, contract, period, state, closing=closing)
    if closing:
        _store(session, tenant_id, contract, period, before=state, after=charged.state)
    return charged.lines, _post_difference(session, tenant_id, period, charged.owed)


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


def usage_adjusted_in(session: Session, tenant_ids: Collection[str], made: WindowBounds) -> dict[str, int]:
    """By how much the usage of these tenants was adjusted by adjustments that were made in a span of time."""
    low, high = (clock.to_ms(at) for at in (made.start - _CLOCKS_APART, made.end + _CLOCKS_APART))
    statement = (
        select(UsageAdjustment.tenant_id, total(UsageAdjustment.usage_nanos))
        .where(
            among(col(UsageAdjustment.tenant_id), tenant_ids),
            # Ids are in the order of time, which makes this a range of the primary key.
            col(UsageAdjustment.id) >= first_id_of_ms("adj", low),
            col(UsageAdjustment.id) < first_id_of_ms("adj", high),
            col(UsageAdjustment.created_at) >= made.start,
            col(UsageAdjustment.created_at) < made.end,
        )
        .group_by(col(UsageAdjustment.tenant_id))
    )
    return dict(session.exec(statement).all())


def _state_at(session: Session, tenant_id: str, contract: Contract, period: Period, *, closing: bool) -> PeriodState:
    """The state that a period starts with. If the period before it is still open, this is what that one would leave."""
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
    """Store what a period leaves. Nothing is stored where nothing was left before or after, and the calendar's period
    ends with the invoice.
    """
    whole = contract.terms.calendars.period_at(period.start)
    if after.is_empty() and before.is_empty() and whole.end <= period.end:
        return
    stored = {"tenant_id": tenant_id, "period_end": period.end, "state": msgspec.to_builtins(after)}
    session.exec(sa.insert(StoredPeriodState).values(**stored, created_at=sa.func.clock_timestamp()))


def _post_difference(session: Session, tenant_id: str, period: Period, owed: Owed) -> int:
    """Post what is missing on the ledger to what a period costs. Returns the amount.

    The caller holds the tenant's subscription, so no usage and no other adjustment of the tenant is posted meanwhile.
    """
    before = read_adjusted(session, tenant_id, period)
    amount_nanos = owed.amount_nanos - owed.recorded_nanos - before.usage_nanos - before.other_nanos
    usage_nanos = owed.usage_nanos - owed.recorded_nanos - before.usage_nanos
    if amount_nanos != 0:
        _post(session, tenant_id, period, amount_nanos, usage_nanos)
    return amount_nanos


def _post(session: Session, tenant_id: str, period: Period, amount_nanos: int, usage_nanos: int) -> None:
    session.add(
        UsageAdjustment(
            id=new_id("adj"),
            tenant_id=tenant_id,
            period_start=period.start,
            amount_nanos=amount_nanos,
            usage_nanos=usage_nanos,
            transfer_id=ledger.post(session, "adjustment", ledger.earned({tenant_id: amount_nanos})),
            created_at=database_now(session),
        )
    )
    session.flush()
