"""Takes discounts and coupons off a period's charges, in the order in which they were granted. Pure: no database.

A discount lowers what its scope names: usage (with storage, pins and cold loads), fees, or all. One of all charges
lowers both in proportion, which a later one with a scope finds lowered.

A discount applies to a period if it is in force when the period ends. What a coupon has left when it expires is lost,
and the next invoice says so.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from billing.charges.lines import DraftInvoiceLine, amount_line
from billing.charges.state import DiscountUse
from billing.subscriptions.discounts import DiscountScope, DiscountTerms
from core.money import format_usd
from core.periods import Period

_HUNDREDTHS: Final = 10_000  # of a percent, in all


class Charges(NamedTuple):
    """What discounts lower. Fees may be negative: what comes back of a fee in advance."""

    usage_nanos: int
    fees_nanos: int

    def of(self, scope: DiscountScope) -> int:
        """The most that a discount of this scope may take: never more than all charges."""
        whole = self.usage_nanos + self.fees_nanos
        named = {"usage": self.usage_nanos, "fees": self.fees_nanos, "all": whole}[scope]
        return max(0, min(named, whole))

    def less(self, scope: DiscountScope, taken_nanos: int) -> "Charges":
        """The charges without what a discount of this scope has taken."""
        if scope == "all":
            usage, fees = max(0, self.usage_nanos), max(0, self.fees_nanos)
            of_fees = taken_nanos * fees // max(1, usage + fees)
        else:
            of_fees = taken_nanos if scope == "fees" else 0
        return Charges(self.usage_nanos - (taken_nanos - of_fees), self.fees_nanos - of_fees)


class Discounted(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of discounts, with negative amounts, and how far each discount is used."""

    lines: tuple[DraftInvoiceLine, ...]
    uses: tuple[DiscountUse, ...]


def discount(
    charges: Charges,
    discounts: Sequence[DiscountTerms],
    before: Sequence[DiscountUse],
    *,
    billed: Period,
    period_start: datetime,
) -> Discounted:
    """Take the discounts, in order, off ``charges``. ``period_start`` begins the calendar's period of the billed
    time.
    """
    used: Mapping[str, DiscountUse] = {use.discount_id: use for use in before}
    lines: list[DraftInvoiceLine] = []
    uses: list[DiscountUse] = []
    for each in discounts:
        use = used.get(each.id, DiscountUse(discount_id=each.id))
        if each.begins >= billed.end:
            continue
        if each.ends is not None and each.ends < billed.end:
            lost = _lost_nanos(each, use)
            if lost and not use.lapsed:
                lines.append(_line(each, 0, f"{each.name}: {format_usd(lost)} expired"))
            uses.append(msgspec.structs.replace(use, lapsed=True))
            continue
        use = _counted(each, use, period_start)
        left_nanos = charges.of(each.scope)
        taken = min(left_nanos, _open_nanos(each, use, left_nanos))
        charges = charges.less(each.scope, taken)
        if taken:
            lines.append(_line(each, -taken, each.name))
        if each.duration == "once" and each.percent_hundredths is not None and taken:
            use = msgspec.structs.replace(use, periods=1, counted_from=period_start)
        uses.append(
            msgspec.structs.replace(use, used_nanos=use.used_nanos + taken, period_nanos=use.period_nanos + taken)
        )
    return Discounted(
        lines=tuple(lines), uses=tuple(use for use in uses if use != DiscountUse(discount_id=use.discount_id))
    )


def _counted(each: DiscountTerms, use: DiscountUse, period_start: datetime) -> DiscountUse:
    """Count the period of a discount of a number of periods, once."""
    if each.duration != "periods" or use.counted_from == period_start:
        return use
    return msgspec.structs.replace(use, periods=use.periods + 1, counted_from=period_start)


def _open_nanos(each: DiscountTerms, use: DiscountUse, left_nanos: int) -> int:
    """The most that the discount takes off now."""
    if each.duration == "periods" and use.periods > (each.periods or 0):
        return 0
    if each.percent_hundredths is not None:
        # A coupon of one charge holds for the whole period of that charge.
        spent = each.duration == "once" and use.periods > 0 and use.period_nanos == 0
        return 0 if spent else left_nanos * each.percent_hundredths // _HUNDREDTHS
    assert each.amount_nanos is not None, "a discount is a percentage or an amount"
    return each.amount_nanos - (use.used_nanos if each.duration == "once" else use.period_nanos)


def _lost_nanos(each: DiscountTerms, use: DiscountUse) -> int:
    if each.duration != "once" or each.amount_nanos is None or use.used_nanos == 0:
        return 0
    return each.amount_nanos - use.used_nanos


def _line(each: DiscountTerms, nanos: int, description: str) -> DraftInvoiceLine:
    kind: Literal["discount", "coupon"] = "discount" if each.duration == "forever" else "coupon"
    if each.percent_hundredths is not None and nanos:
        whole, part = divmod(each.percent_hundredths, 100)
        percent = f"{whole}.{part:02d}".rstrip("0").rstrip(".")
        description = f"{description} ({percent} %)"
    return amount_line(kind, nanos, description=description, source_id=each.id)
