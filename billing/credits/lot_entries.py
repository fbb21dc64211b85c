"""Reads lots with the sums of their entries, and writes entries. Every entry has a ledger transfer of its own.

Its callers hold the tenant's subscription until the commit: nothing of the tenant is recorded or invoiced meanwhile.
"""

from typing import Literal, NamedTuple, cast

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import ledger
from billing.credits.burn_order import BurnableLot
from billing.credits.models import CreditEntry, CreditLot
from billing.credits.views import CreditKind
from billing.ledger import AccountRef, between
from core.db import database_now
from core.errors import NotFound

EntryKind = Literal["grant", "burn", "return", "lapse", "refund", "void"]


class LotState(NamedTuple):
    """A lot with the sums of its entries. Sums of what left the lot are positive; ``burned_nanos`` is less what voided
    invoices returned.
    """

    lot: CreditLot
    entries: int
    balance_nanos: int
    burned_nanos: int
    lapsed_nanos: int
    refunded_nanos: int
    voided_nanos: int

    @property
    def burnable(self) -> BurnableLot:
        """The lot for the burn order. What has lapsed is still there for usage of before the expiry."""
        return burnable(self.lot, self.balance_nanos + self.lapsed_nanos)


def burnable(lot: CreditLot, left_nanos: int) -> BurnableLot:
    """A lot of which charges may take this much."""
    return BurnableLot(
        id=lot.id,
        kind=cast("CreditKind", lot.kind),
        priority=lot.priority,
        effective_from=lot.effective_from,
        expires_at=lot.expires_at,
        models=tuple(lot.models),
        left_nanos=left_nanos,
    )


def move(
    session: Session, state: LotState, kind: EntryKind, amount_nanos: int, *, invoice_id: str | None = None
) -> LotState:
    """Write an entry and its transfer. The caller holds the tenant's subscription. Returns the lot afterwards."""
    lot = state.lot
    transfer_id = _post(session, lot, kind, amount_nanos)
    session.exec(
        sa.insert(CreditEntry).values(
            lot_id=lot.id,
            number=state.entries + 1,
            kind=kind,
            amount_nanos=amount_nanos,
            balance_nanos=state.balance_nanos + amount_nanos,
            invoice_id=invoice_id,
            transfer_id=transfer_id,
            created_at=database_now(session),
        )
    )
    return read_lot(session, tenant_id=lot.tenant_id, lot_id=lot.id)


def read_lot(session: Session, *, tenant_id: str, lot_id: str) -> LotState:
    """One lot of the tenant. Raises NotFound."""
    found = _states(session, CreditLot.tenant_id == tenant_id, CreditLot.id == lot_id)
    if not found:
        raise NotFound("Credit lot not found.", code="credit_lot_not_found")
    return found[0]


def open_lots(session: Session, tenant_id: str) -> list[LotState]:
    """The tenant's lots that charges may still use: with a balance, or with something that lapsed."""
    return [state for state in _states(session, CreditLot.tenant_id == tenant_id) if state.burnable.left_nanos > 0]


def list_lots(session: Session, tenant_id: str, *, after: str | None, limit: int) -> list[LotState]:
    """The tenant's lots, newest first."""
    older = sa.true() if after is None else col(CreditLot.id) < after
    return _states(session, CreditLot.tenant_id == tenant_id, older, limit=limit)


def _states(session: Session, *conditions: sa.ColumnElement[bool] | bool, limit: int | None = None) -> list[LotState]:
    """Lots with their sums, newest first. ``entries`` and the balance are those of the last entry."""
    lots = list(session.exec(select(CreditLot).where(*conditions).order_by(col(CreditLot.id).desc()).limit(limit)))
    moved = col(CreditEntry.amount_nanos)
    sums = (
        sa.select(
            col(CreditEntry.lot_id),
            sa.func.max(CreditEntry.number),
            *(
                sa.cast(sa.func.coalesce(sa.func.sum(moved).filter(which), 0), sa.BigInteger)
                for which in (
                    sa.true(),
                    col(CreditEntry.kind).in_(("burn", "return")),
                    *(col(CreditEntry.kind) == kind for kind in ("lapse", "refund", "void")),
                )
            ),
        )
        .where(col(CreditEntry.lot_id).in_([lot.id for lot in lots]))
        .group_by(col(CreditEntry.lot_id))
    )
    of_lot = {lot_id: rest for lot_id, *rest in session.connection().execute(sums)} if lots else {}
    states = []
    for lot in lots:
        number, balance, burned, lapsed, refunded, voided = of_lot.get(lot.id, (0, 0, 0, 0, 0, 0))
        states.append(LotState(lot, number, balance, -burned, -lapsed, -refunded, -voided))
    return states


def _post(session: Session, lot: CreditLot, kind: EntryKind, amount_nanos: int) -> str:
    """Post the transfer of an entry: what leaves the lot is debited from its account."""
    paid = lot.kind == "paid"
    own = AccountRef("credits_paid" if paid else "credits_promotional", lot.tenant_id)
    match kind:
        case "grant" | "refund" | "void":
            other = AccountRef("cash" if paid else "promotions")
        case "lapse":
            other = AccountRef("breakage" if paid else "promotions")
        case "burn" | "return":
            other = AccountRef("receivable" if paid else "usage_unbilled", lot.tenant_id)
    names: dict[EntryKind, ledger.TransferKind] = {
        "grant": "credit_grant", "burn": "credit_burn", "return": "void", "lapse": "credit_lapse", "refund": "refund",
        "void": "void",
    }  # fmt: skip
    return ledger.post(session, names[kind], between(other, own, amount_nanos))
