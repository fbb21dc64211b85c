"""A tenant's credit now: what is in its lots, less what usage that is not invoiced yet will take.

It is computed when it is read, so a lot counts until the instant of its expiry and not after it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

from sqlmodel import Session

from billing.charges.inputs import read_adjusted
from billing.credits.burn_order import BurnableLot, Burned, burn
from billing.credits.dated_charges import charges_of_lines, charges_so_far, periods_of
from billing.credits.lot_entries import LotState, open_lots
from billing.credits.open_usage import open_period, read_slices
from billing.credits.views import BurnedDay, CreditBalance, LotStatus, LotView
from billing.invoices.carrying import waiting_lines
from core.db import database_now
from core.struct_types import view_of


class OpenCredit(NamedTuple):
    """The lots that charges may still use. ``pending`` is what usage that is not invoiced takes of each."""

    now: datetime
    lots: Sequence[LotState]
    burned: Burned
    pending: Mapping[str, int]

    def unspent_nanos(self, state: LotState) -> int:
        """What new usage, or a refund, may take out of a lot."""
        lot = state.lot
        if lot.expires_at is not None and self.now >= lot.expires_at:
            return 0
        return state.burnable.left_nanos - self.pending.get(lot.id, 0)

    def spendable_nanos(self) -> int:
        """What any usage of now may take: lots that are in force for every model."""
        return sum(
            self.unspent_nanos(state)
            for state in self.lots
            if not state.lot.models and state.lot.effective_from <= self.now
        )

    def view(self, state: LotState) -> LotView:
        """The lot as other packages see it."""
        lot = state.lot
        unspent = self.unspent_nanos(state)
        expired = lot.expires_at is not None and self.now >= lot.expires_at
        status: LotStatus = "expired" if expired else "active" if unspent else "used"
        if lot.effective_from > self.now:
            status = "scheduled"
        pending = self.pending.get(lot.id, 0)
        return view_of(
            lot,
            LotView,
            status=status,
            balance_nanos=unspent,
            invoiced_nanos=state.burned_nanos,
            pending_nanos=pending,
            lapsed_nanos=state.burnable.left_nanos - pending if expired else 0,
            refunded_nanos=state.refunded_nanos,
            voided_nanos=state.voided_nanos,
        )


def read_open_credit(session: Session, tenant_id: str, *, always: bool = False) -> OpenCredit:
    """The tenant's credit now. A tenant without lots costs one look, and shows no usage, except with ``always``."""
    lots = open_lots(session, tenant_id)
    now = database_now(session)
    if not lots and not always:
        return OpenCredit(now, [], Burned(parts=()), {})
    period = open_period(session, tenant_id)
    burnable = [state.burnable for state in lots]
    bounds = bounds_of(burnable)
    slices = read_slices(session, tenant_id, [period], bounds)
    charges = charges_so_far(slices, read_adjusted(session, tenant_id, period), now)
    if waiting := waiting_lines(session, tenant_id):
        charges += charges_of_lines(read_slices(session, tenant_id, periods_of(waiting), bounds), waiting, now)
    burned = burn(burnable, charges)
    return OpenCredit(now, lots, burned, {use.lot_id: use.amount_nanos for use in burned.uses})


def read_balance(session: Session, tenant_id: str) -> CreditBalance:
    """The tenant's credit with the lots that have any of it left, in burn order."""
    credit = read_open_credit(session, tenant_id)
    lots = [credit.view(state) for state in sorted(credit.lots, key=lambda state: state.burnable.order)]
    active = [lot for lot in lots if lot.status == "active"]
    paid = sum(lot.balance_nanos for lot in active if lot.kind == "paid")
    promotional = sum(lot.balance_nanos for lot in active if lot.kind == "promotional")
    return CreditBalance(
        balance_nanos=paid + promotional,
        paid_nanos=paid,
        promotional_nanos=promotional,
        pending_nanos=sum(credit.pending.values()),
        uncovered_nanos=credit.burned.uncovered_nanos,
        lots=lots,
        burn_down=_by_day(credit.burned),
    )


def bounds_of(lots: Sequence[BurnableLot]) -> list[datetime]:
    """The instants at which lots begin and end."""
    return [at for lot in lots for at in (lot.effective_from, lot.expires_at) if at is not None]


def _by_day(burned: Burned) -> list[BurnedDay]:
    days: Counter[date] = Counter()
    for part in burned.parts:
        if part.lot is not None:
            days[part.charge.at.astimezone(UTC).date()] += part.charge.amount_nanos
    return [BurnedDay(day=day, amount_nanos=amount) for day, amount in sorted(days.items())]
