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


class Leg(msgspec.Struct, frozen=True):
    """One side of a posting: positive debits the account, negative credits it."""

    account: AccountRef
    amount_nanos: int


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer to post. ``invoice_id`` is set for the transfer that finalizes an invoice, and only for it."""

    transfer_id: str
    kind: TransferKind
    legs: tuple[Leg, ...]
    invoice_id: str | None = None


def usage_posting(*, transfer_id: str, amounts_nanos: Mapping[str, int]) -> Posting:
    """Revenue is earned when usage happens: each tenant owes its amount, unbilled, and revenue grows. The transfer
    belongs to the records of one transaction, which name it.
    """
    owed = (Leg(AccountRef("usage_unbilled", tenant), nanos) for tenant, nanos in sorted(amounts_nanos.items()))
    return Posting(
        transfer_id=transfer_id,
        kind="usage",
        legs=(*owed, Leg(AccountRef("revenue"), -sum(amounts_nanos.values()))),
    )


def adjustment_posting(*, transfer_id: str, tenant_id: str, amount_nanos: int) -> Posting:
    """Usage turns out to cost more, or less, than its records say."""
    return Posting(
        transfer_id=transfer_id,
        kind="adjustment",
        legs=(Leg(AccountRef("usage_unbilled", tenant_id), amount_nanos), Leg(AccountRef("revenue"), -amount_nanos)),
    )


def amendment_posting(*, transfer_id: str, tenant_id: str, amount_nanos: int) -> Posting:
    """A request turns out to have used something else: a part of its amendment, negative for the reversal."""
    return Posting(
        transfer_id=transfer_id,
        kind="amendment",
        legs=(Leg(AccountRef("usage_unbilled", tenant_id), amount_nanos), Leg(AccountRef("revenue"), -amount_nanos)),
    )


def invoice_posting(
    *, invoice_id: str, tenant_id: str, amount_nanos: int, net_nanos: int, tax_nanos: int = 0
) -> Posting:
    """An invoice turns unbilled usage into a receivable of whole cents, and owes its tax. The rounding has its own
    account.
    """
    legs = [
        Leg(AccountRef("usage_unbilled", tenant_id), -amount_nanos),
        Leg(AccountRef("receivable", tenant_id), net_nanos + tax_nanos),
        Leg(AccountRef("rounding"), amount_nanos - net_nanos),
    ]
    if tax_nanos:
        legs.append(Leg(AccountRef("tax_payable"), -tax_nanos))
    return Posting(transfer_id=new_id("tr"), kind="invoice", invoice_id=invoice_id, legs=tuple(legs))


def post(session: Session, posting: Posting) -> None:
    """Post a transfer. Its entries are written before the transfer, which closes it: the database refuses any entry or
    usage record for a transfer that exists. A second transfer for one invoice is refused too.
    """
    assert sum(leg.amount_nanos for leg in posting.legs) == 0, f"transfer {posting.transfer_id} must sum to zero"
    account_ids = _open_accounts(session, {leg.account for leg in posting.legs})
    assert len(account_ids) == len(posting.legs), "each account once"
    session.exec(
        sa.insert(LedgerEntry),
        params=[
            {
                "transfer_id": posting.transfer_id,
                "account_id": account_ids[leg.account],
                "amount_nanos": leg.amount_nanos,
            }
            for leg in posting.legs
        ],
    )
    session.exec(
        sa.insert(LedgerTransfer).values(
            id=posting.transfer_id,
            kind=posting.kind,
            invoice_id=posting.invoice_id,
            created_at=sa.func.clock_timestamp(),
        )
    )


def balance_nanos(session: Session, account: AccountRef) -> int:
    """The sum of an account's entries; an account that was never opened has 0."""
    statement = (
        select(sa.cast(sa.func.coalesce(sa.func.sum(col(LedgerEntry.amount_nanos)), 0), sa.BigInteger))
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
