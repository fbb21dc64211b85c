"""The double-entry ledger: the only writer of accounts, transfers and entries, which are append-only.

Every transfer sums to zero. A request's record belongs to one transfer, and an invoice has one. Balances are sums of
entries and are not stored.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.models import LedgerAccount, LedgerEntry, LedgerTransfer
from core.db import total
from core.ids import new_id

AccountKind = Literal[
    "usage_unbilled", "receivable", "customer_balance", "credits_paid", "credits_promotional",
    "revenue", "rounding", "cash", "promotions", "breakage", "tax_payable", "bad_debt",
]  # fmt: skip
"""What a tenant owes (unbilled usage, receivable) and is owed (balance, credits); then the platform's own accounts."""

TransferKind = Literal[
    "usage", "adjustment", "invoice", "amendment", "credit_note", "payment", "refund", "void", "write_off", "recovery",
    "credit_grant", "credit_burn", "credit_lapse", "balance",
]  # fmt: skip


class AccountRef(msgspec.Struct, frozen=True):
    """An account by its kind and tenant. The platform's own accounts have no tenant."""

    kind: AccountKind
    tenant_id: str | None = None


def between(account: AccountRef, other: AccountRef, amount_nanos: int) -> dict[AccountRef, int]:
    """The legs that debit one account, or credit it below 0, and do the opposite to another one."""
    return {account: amount_nanos, other: -amount_nanos}


def earned(amounts_nanos: Mapping[str, int]) -> dict[AccountRef, int]:
    """Revenue is earned when usage happens, or turns out to cost more or less: each tenant owes its amount, unbilled,
    and revenue grows.
    """
    owed = {AccountRef("usage_unbilled", tenant): nanos for tenant, nanos in sorted(amounts_nanos.items())}
    return {**owed, AccountRef("revenue"): -sum(amounts_nanos.values())}


def post(
    session: Session,
    kind: TransferKind,
    legs: Mapping[AccountRef, int],
    *,
    transfer_id: str | None = None,
    invoice_id: str | None = None,
) -> str:
    """Post a transfer of nanodollars: positive legs debit their account, negative ones credit it. Returns its id,
    which records of usage have named before. ``invoice_id`` is set only for the transfer that finalizes an invoice.

    Entries are written before the transfer, which closes it: the database refuses any entry or usage record for a
    transfer that exists. A second transfer for one invoice is refused too.
    """
    transfer_id = transfer_id or new_id("tr")
    assert sum(legs.values()) == 0, f"transfer {transfer_id} must sum to zero"
    account_ids = _open_accounts(session, set(legs))
    session.exec(
        sa.insert(LedgerEntry),
        params=[
            {"transfer_id": transfer_id, "account_id": account_ids[account], "amount_nanos": nanos}
            for account, nanos in legs.items()
        ],
    )
    session.exec(
        sa.insert(LedgerTransfer).values(
            id=transfer_id, kind=kind, invoice_id=invoice_id, created_at=sa.func.clock_timestamp()
        )
    )
    return transfer_id


def balance_nanos(session: Session, account: AccountRef) -> int:
    """The sum of an account's entries; an account that was never opened has 0."""
    statement = (
        select(total(LedgerEntry.amount_nanos))
        .join(LedgerAccount, col(LedgerAccount.id) == LedgerEntry.account_id)
        .where(LedgerAccount.kind == account.kind, col(LedgerAccount.tenant_id).is_not_distinct_from(account.tenant_id))
    )
    return session.exec(statement).one()


def _open_accounts(session: Session, wanted: set[AccountRef]) -> dict[AccountRef, str]:
    """The ids of these accounts. Missing accounts are opened, in the same order by every writer."""
    found = _account_ids(session, wanted)
    if missing := sorted(wanted - found.keys(), key=lambda account: (account.kind, account.tenant_id or "")):
        session.exec(
            insert(LedgerAccount).on_conflict_do_nothing(),
            params=[{"id": new_id("acc"), "kind": account.kind, "tenant_id": account.tenant_id} for account in missing],
        )
        found |= _account_ids(session, set(missing))
    return found


def _account_ids(session: Session, wanted: set[AccountRef]) -> dict[AccountRef, str]:
    tenant_ids = {account.tenant_id for account in wanted if account.tenant_id}
    statement = select(LedgerAccount.kind, LedgerAccount.tenant_id, LedgerAccount.id).where(
        sa.or_(col(LedgerAccount.tenant_id).is_(None), col(LedgerAccount.tenant_id).in_(tenant_ids))
    )
    found = {(kind, tenant_id): account_id for kind, tenant_id, account_id in session.exec(statement)}
    return {ref: found[ref.kind, ref.tenant_id] for ref in wanted if (ref.kind, ref.tenant_id) in found}
