"""What a prepaid tenant may still use so that its credit pays for it with tax, as a pure function. No database.

Tax is owed on what paid credit pays, and paid credit pays it; promotional credit lowers what is taxed. So of paid
credit, the tax of all usage that is not invoiced is held back, at the rates of now, rounded as an invoice rounds it.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from billing.credits.burn_order import BurnableLot, Burned, burn, without_rest
from billing.credits.dated_charges import scaled
from billing.tax.calculation import TaxDecision, tax_lines
from core.money import NANOS_PER_CENT, cents_to_nanos, round_to_cents


def usable_nanos(lots: Sequence[BurnableLot], burned: Burned, taxes: TaxDecision, now: datetime) -> int:
    """What usage of now may cost, of any model, so that an invoice of all of it leaves nothing due that is covered by
    credit now. ``burned`` is what the lots pay of usage so far.

    New usage takes lots in burn order, so promotional credit behind paid credit counts only if the paid credit before
    it can be used up together with its tax.
    """
    used = {use.lot_id: use.amount_nanos for use in burned.uses}
    usable = [lot for lot in sorted(lots, key=lambda lot: lot.order) if lot.covers(now, None)]
    free = {lot.id: lot.left_nanos - used.get(lot.id, 0) for lot in usable}
    if taxes.rate is None or not taxes.rate.rate_ppm:
        return sum(free.values())
    paid_nanos = _paid_free(lots, burned, taxes, usable)
    total = 0
    for lot in usable:
        taken = free[lot.id] if lot.kind == "promotional" else min(free[lot.id], paid_nanos)
        total += taken
        if lot.kind == "paid":
            paid_nanos -= taken
        if taken < free[lot.id]:
            break
    return total


def gross_cents(net_cents: int, taxes: TaxDecision) -> int:
    """A net amount with its taxes, as an invoice has it."""
    return net_cents + sum(tax.tax_cents for tax in tax_lines(taxes, net_cents))


def net_cents_within(total_cents: int, taxes: TaxDecision) -> int:
    """The largest net amount that is at most this total with its taxes."""
    low, high = 0, max(0, total_cents)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if gross_cents(middle, taxes) <= total_cents else (low, middle - 1)
    return low


def _paid_free(lots: Sequence[BurnableLot], burned: Burned, taxes: TaxDecision, usable: Iterable[BurnableLot]) -> int:
    """What paid lots that may be used now can pay of further usage, with its tax, beyond an invoice of all so far."""
    net = burned.not_paid_by("promotional")
    net_nanos = sum(charge.amount_nanos for charge in net)
    so_far_cents = gross_cents(round_to_cents(net_nanos), taxes)
    paid = [lot for lot in lots if lot.kind == "paid"]
    invoiced = burn(paid, scaled(net, cents_to_nanos(so_far_cents)))
    used = {use.lot_id: use.amount_nanos for use in without_rest(invoiced.uses, NANOS_PER_CENT)}
    left_nanos = sum(lot.left_nanos - used.get(lot.id, 0) for lot in usable if lot.kind == "paid")
    most_cents = net_cents_within(so_far_cents + left_nanos // NANOS_PER_CENT, taxes)
    return max(0, cents_to_nanos(most_cents) - net_nanos)
