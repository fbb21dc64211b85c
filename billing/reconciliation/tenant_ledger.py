"""A tenant's accounts in the ledger and the transfers that touch them, for auditors. It writes nothing."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing.models import LedgerAccount, LedgerEntry, LedgerTransfer
from billing.reconciliation.views import LedgerAccountView, LedgerLegView, LedgerTransferView
from core.db import among, total
from core.struct_types import view_of

_OTHERS: Final = "other_tenants"


def accounts(session: Session, tenant_id: str) -> list[LedgerAccountView]:
    """The tenant's accounts with their balances, by kind."""
    balances = (
        select(LedgerAccount.kind, total(LedgerEntry.amount_nanos))
        .join(LedgerEntry, col(LedgerEntry.account_id) == LedgerAccount.id)
        .where(LedgerAccount.tenant_id == tenant_id)
        .group_by(LedgerAccount.kind)
        .order_by(LedgerAccount.kind)
    )
    return [LedgerAccountView(kind=kind, balance_nanos=nanos) for kind, nanos in session.exec(balances)]


def transfers(session: Session, tenant_id: str, *, after: str | None, limit: int) -> Sequence[LedgerTransferView]:
    """The transfers that touch the tenant's accounts, the newest first."""
    own = select(LedgerAccount.id).where(LedgerAccount.tenant_id == tenant_id)
    touching = select(LedgerEntry.transfer_id).where(col(LedgerEntry.account_id).in_(own)).distinct()
    if after is not None:
        touching = touching.where(LedgerEntry.transfer_id < after)
    ids = session.exec(touching.order_by(col(LedgerEntry.transfer_id).desc()).limit(limit)).all()
    found = select(LedgerTransfer).where(among(col(LedgerTransfer.id), ids)).order_by(col(LedgerTransfer.id).desc())
    legs = _legs(session, tenant_id, ids)
    return [view_of(row, LedgerTransferView, legs=legs[row.id]) for row in session.exec(found)]


def _legs(session: Session, tenant_id: str, ids: Sequence[str]) -> defaultdict[str, list[LedgerLegView]]:
    """The legs of each transfer, which sum to zero. One transfer may charge many tenants: those of others are one."""
    is_shown = sa.or_(col(LedgerAccount.tenant_id).is_(None), col(LedgerAccount.tenant_id) == tenant_id)
    account = sa.case((is_shown, col(LedgerAccount.kind)), else_=_OTHERS).label("account")
    rows = (
        select(LedgerEntry.transfer_id, account, total(LedgerEntry.amount_nanos))
        .join(LedgerAccount, col(LedgerAccount.id) == LedgerEntry.account_id)
        .where(among(col(LedgerEntry.transfer_id), ids))
        .group_by(LedgerEntry.transfer_id, account)
        .order_by(LedgerEntry.transfer_id, account)
    )
    found = defaultdict[str, list[LedgerLegView]](list)
    for transfer_id, name, nanos in session.exec(rows):
        found[transfer_id].append(LedgerLegView(account=name, amount_nanos=nanos))
    return found
