"""Which lots of credit pay for which charges, as a pure function of both. No clock and no database.

Charges burn in the order of their time; charges of one instant in the order of their models. Each takes from the lots
that are in force at its instant and whose scope covers its model: by priority (0 first), then the lot that expires
first, then promotional before paid, then the older one. So the same lots and charges always give the same uses, however
and whenever they were recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from billing.credits.views import CreditKind, CreditUse

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class BurnableLot(msgspec.Struct, frozen=True, kw_only=True):
    """A lot with what charges may still take from it. It is in force in ``[effective_from, expires_at)``. Empty
    ``models`` stand for every model and for what belongs to none.
    """

    id: str
    kind: CreditKind
    priority: int
    effective_from: datetime
    expires_at: datetime | None
    models: tuple[str, ...]
    left_nanos: int

    @property
    def order(self) -> tuple[int, datetime, bool, datetime, str]:
        """Lots burn in this order."""
        expires = _NEVER if self.expires_at is None else self.expires_at
        return self.priority, expires, self.kind == "paid", self.effective_from, self.id

    def ended(self, at: datetime) -> bool:
        """Whether the lot had expired by this instant."""
        return self.expires_at is not None and at >= self.expires_at

    def covers(self, at: datetime, model: str | None) -> bool:
        """Whether a charge of this instant and model may use the lot."""
        if at < self.effective_from or self.ended(at):
            return False
        return not self.models or model in self.models


class DatedCharge(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant owes for one model at one instant. Fees belong to no model."""

    at: datetime
    model: str | None
    amount_nanos: int


class BurnedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one charge, paid by one lot, or by none (``lot`` None)."""

    lot: BurnableLot | None
    charge: DatedCharge


class Burned(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of all charges, in the order of the charges; together they are the charges."""

    parts: tuple[BurnedPart, ...]

    @property
    def uses(self) -> list[CreditUse]:
        """What each lot pays, in burn order; lots that pay nothing are left out."""
        paid: defaultdict[str, int] = defaultdict(int)
        lots = {part.lot.id: part.lot for part in self.parts if part.lot is not None}
        for part in self.parts:
            if part.lot is not None:
                paid[part.lot.id] += part.charge.amount_nanos
        ordered = sorted(lots.values(), key=lambda lot: lot.order)
        return [CreditUse(lot_id=lot.id, kind=lot.kind, amount_nanos=paid[lot.id]) for lot in ordered]

    @property
    def uncovered_nanos(self) -> int:
        """What no lot pays."""
        return sum(part.charge.amount_nanos for part in self.parts if part.lot is None)

    def not_paid_by(self, kind: CreditKind) -> list[DatedCharge]:
        """The parts of the charges that lots of this kind do not pay."""
        return [part.charge for part in self.parts if part.lot is None or part.lot.kind != kind]


def burn(lots: Iterable[BurnableLot], charges: Iterable[DatedCharge]) -> Burned:
    """Let the charges use the lots. No lot pays more than it has, and no charge is paid twice."""
    ordered = sorted(lots, key=lambda lot: lot.order)
    left = {lot.id: lot.left_nanos for lot in ordered}
    assert all(amount >= 0 for amount in left.values()), "a lot never becomes negative"
    in_order = sorted(charges, key=_order)
    usable = [lot for lot in ordered if left[lot.id] > 0 and in_order and not lot.ended(in_order[0].at)]
    parts: list[BurnedPart] = []
    for charge in in_order:
        assert charge.amount_nanos >= 0, "credits pay charges; what is given back is netted before"
        owed = charge.amount_nanos
        for lot in usable:
            if owed == 0:
                break
            if left[lot.id] and lot.covers(charge.at, charge.model):
                taken = min(owed, left[lot.id])
                left[lot.id] -= taken
                owed -= taken
                parts.append(BurnedPart(lot=lot, charge=msgspec.structs.replace(charge, amount_nanos=taken)))
        if owed > 0:
            parts.append(BurnedPart(lot=None, charge=msgspec.structs.replace(charge, amount_nanos=owed)))
        elif len(usable) > 1 and not left[usable[0].id]:
            usable = [lot for lot in usable if left[lot.id] > 0]
    return Burned(parts=tuple(parts))


def without_rest(uses: Sequence[CreditUse], unit_nanos: int) -> list[CreditUse]:
    """The uses cut down to whole units together: the last ones give back what is above."""
    excess = sum(use.amount_nanos for use in uses) % unit_nanos
    kept: list[CreditUse] = []
    for use in reversed(uses):
        back = min(excess, use.amount_nanos)
        excess -= back
        if use.amount_nanos > back:
            kept.append(msgspec.structs.replace(use, amount_nanos=use.amount_nanos - back))
    return kept[::-1]


def _order(charge: DatedCharge) -> tuple[datetime, str]:
    return charge.at, charge.model or ""
