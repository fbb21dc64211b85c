"""Everything that an invoice charges before credits and tax, as a pure function of the tenant's terms, the sums of what
was used and what the invoice before left. No database.

The order is: usage at list price, included usage and tiers; resources; fees; discounts; the true-up of commitments;
what a negative invoice before has left. Only the final invoice of a tenant that has left may be negative.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from billing.charges.commitments import true_up
from billing.charges.discounting import Charges, discount
from billing.charges.fees import fee_lines
from billing.charges.lines import DraftInvoiceLine, UsageTotal, amount_line
from billing.charges.proration import TenantTerms
from billing.charges.resource_charge import ResourceTotal, resource_charge
from billing.charges.state import PeriodState
from billing.charges.usage_charge import charge, take_included
from billing.subscriptions.discounts import DiscountTerms
from core.periods import Period

_FROM_BEFORE: Final = "Credit from the invoice before"


class PeriodUse(NamedTuple):
    """What a tenant used in the billed time."""

    totals: Sequence[UsageTotal]
    resources: Sequence[ResourceTotal] = ()


class Statement(NamedTuple):
    """The lines without cents, the part of them that is usage, and what they leave to the next invoice."""

    lines: list[DraftInvoiceLine]
    usage_nanos: int
    state: PeriodState


def state_charges(
    terms: TenantTerms,
    discounts: Sequence[DiscountTerms],
    used: PeriodUse,
    before: PeriodState,
    billed: Period,
    *,
    closing: bool,
) -> Statement:
    """The charges for ``billed``, which lies in one period of the tenant's calendar. ``closing``: the invoice is made
    now, so a commitment that ends has its true-up and an invoice below zero is carried over.
    """
    around = terms.calendars.period_at(billed.start)
    assert billed.end <= around.end, "the billed time lies in one period"
    state = before.in_period(around.start)
    included = take_included(terms, billed, used.totals, state.pools)
    versions = {span.version.id: span.version for span in terms.prices if span.version is not None}
    charged = charge(used.totals, included.taken, state.tiers, versions)
    lines = [*charged.lines, *resource_charge(used.resources)]
    usage_nanos = _sum(lines)
    lines += fee_lines(terms, billed)
    charges = Charges(usage_nanos, _sum(lines) - usage_nanos)
    discounted = discount(charges, discounts, state.discounts, billed=billed, period_start=around.start)
    lines += discounted.lines
    state = msgspec.structs.replace(state, pools=included.pools, tiers=charged.tiers, discounts=discounted.uses)
    committed = true_up(terms, billed, _sum(lines), state, closing=closing)
    lines += committed.lines
    if terms.ended is not None and terms.ended <= billed.end:
        carried, credit_nanos = _pay_out(state.credit_nanos), 0
    else:
        carried, credit_nanos = _carry(_sum(lines), state.credit_nanos, closing=closing)
    state = msgspec.structs.replace(committed.state, credit_nanos=credit_nanos)
    return Statement([*lines, *carried], usage_nanos, state)


def _carry(total_nanos: int, credit_nanos: int, *, closing: bool) -> tuple[list[DraftInvoiceLine], int]:
    """The line that takes a credit off a positive total, or carries a negative total over; and the credit then."""
    if total_nanos < 0 and closing:
        description = "Credit, carried to the next invoice"
        return [amount_line("carried", -total_nanos, description=description)], credit_nanos - total_nanos
    taken = min(max(0, total_nanos), credit_nanos)
    if taken == 0:
        return [], credit_nanos
    return [amount_line("carried", -taken, description=_FROM_BEFORE)], credit_nanos - taken


def _pay_out(credit_nanos: int) -> list[DraftInvoiceLine]:
    """The line that takes all credit off an invoice that none follows. What it lacks below zero is paid back."""
    return [amount_line("carried", -credit_nanos, description=_FROM_BEFORE)] if credit_nanos else []


def _sum(lines: Sequence[DraftInvoiceLine]) -> int:
    return sum(line.amount_nanos for line in lines)
