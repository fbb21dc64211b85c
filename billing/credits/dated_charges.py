"""Dates the amounts of an invoice, as a pure function: what its usage cost at which instant, so that credits can burn
in the order of time.

Usage is dated by when it settled. Everything else on an invoice (fees, commitments, what was carried over) is dated at
the last instant of the period. What lowers the invoice (discounts, coupons, tiers) lowers all of it in proportion.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec

from billing.charges.inputs import Adjusted
from billing.credits.burn_order import DatedCharge
from billing.prices.quantities import QUANTITIES
from core.money import distribute
from core.periods import Period

_MOMENT: Final = timedelta(microseconds=1)


class ChargedLine(Protocol):
    """What this module needs of an invoice line."""

    @property
    def kind(self) -> str: ...
    @property
    def base_model(self) -> str | None: ...
    @property
    def amount_nanos(self) -> int: ...
    @property
    def covers_from(self) -> datetime | None: ...
    @property
    def covers_until(self) -> datetime | None: ...


class UsageSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What the records of one model cost that settled at about one instant: no lot begins or ends in between. A
    correction of earlier usage may make it negative.
    """

    at: datetime
    model: str
    amount_nanos: int


def periods_of(lines: Sequence[ChargedLine]) -> list[Period]:
    """The earlier periods whose usage is on these lines: of what was carried to the invoice."""
    found = {(line.covers_from, line.covers_until) for line in lines if line.kind in QUANTITIES}
    return sorted(Period(start, end) for start, end in found if start is not None and end is not None)


def charges_of_lines(slices: Sequence[UsageSlice], lines: Sequence[ChargedLine], end: datetime) -> list[DatedCharge]:
    """The charges of a period that ends at ``end``. Together they are the sum of the lines, or none if that is below
    zero.
    """
    total = sum(line.amount_nanos for line in lines)
    if total <= 0:
        return []
    used = [each for each in slices if each.amount_nanos > 0]
    recorded = _by_model(used)
    of_model: Counter[str] = Counter()
    of_no_model = of_all_models = 0
    for line in lines:
        if line.amount_nanos < 0:
            continue
        if line.base_model is not None:
            of_model[line.base_model] += line.amount_nanos
        elif line.kind in QUANTITIES:
            of_all_models += line.amount_nanos
        else:
            of_no_model += line.amount_nanos
    if of_all_models and not any(recorded.values()):
        of_no_model += of_all_models
    elif of_all_models:
        # A tier that counts every model took over a part of what each model's records cost.
        models = sorted(recorded)
        remaining = [max(0, recorded[model] - of_model[model]) for model in models]
        shares = distribute(of_all_models, remaining if any(remaining) else [recorded[model] for model in models])
        of_model.update(dict(zip(models, shares, strict=True)))
    charges: list[DatedCharge] = []
    for model in sorted(of_model):
        own = [each for each in used if each.model == model]
        for each, amount in zip(own, distribute(of_model[model], [each.amount_nanos for each in own]), strict=True):
            charges.append(DatedCharge(at=each.at, model=model, amount_nanos=amount))
        if not own:
            charges.append(DatedCharge(at=end - _MOMENT, model=model, amount_nanos=of_model[model]))
    charges.append(DatedCharge(at=end - _MOMENT, model=None, amount_nanos=of_no_model))
    return scaled(charges, total)


def charges_so_far(slices: Sequence[UsageSlice], adjusted: Adjusted, now: datetime) -> list[DatedCharge]:
    """The charges of what is not invoiced yet: its usage, and as of ``now`` what is owed besides it."""
    charges = [
        DatedCharge(at=each.at, model=each.model, amount_nanos=each.amount_nanos)
        for each in slices
        if each.amount_nanos > 0
    ]
    usage = max(0, sum(each.amount_nanos for each in slices) + adjusted.usage_nanos)
    if adjusted.other_nanos <= 0:
        return scaled(charges, max(0, usage + adjusted.other_nanos))
    fees = DatedCharge(at=now, model=None, amount_nanos=adjusted.other_nanos)
    return [*scaled(charges, usage), fees]


def scaled(charges: Sequence[DatedCharge], total_nanos: int) -> list[DatedCharge]:
    """The charges in proportion, so that together they are ``total_nanos``. Charges of nothing are left out."""
    amounts = distribute(total_nanos, [charge.amount_nanos for charge in charges])
    return [
        msgspec.structs.replace(charge, amount_nanos=amount)
        for charge, amount in zip(charges, amounts, strict=True)
        if amount > 0
    ]


def _by_model(slices: Sequence[UsageSlice]) -> Counter[str]:
    recorded: Counter[str] = Counter()
    for each in slices:
        recorded[each.model] += each.amount_nanos
    return recorded
