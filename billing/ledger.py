"""The double-entry ledger: the only writer of accounts, transfers and entries, which are append-only.

Every transfer sums to zero and happens at most once per request or invoice. Balances are sums of entries and are not
stored.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.models import LedgerAccount, LedgerEntry, LedgerTransfer
from core.db import database_now
from core.ids import new_id

AccountKind = Literal["usage_unbilled", "receivable", "revenue", "rounding"]


class AccountRef(msgspec.Struct, frozen=True):
    """An account by its kind and tenant. ``revenue`` and ``rounding`` have no tenant."""

    kind: AccountKind
    tenant_id: str | None = None


class Leg(msgspec.Struct, frozen=True):
    """One side of a posting: positive debits the account, negative credits it."""

    account: AccountRef
    amount_nanos: int


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer to post, caused by exactly one request or one invoice."""

    legs: tuple[Leg, ...]
    request_id: str | None = None
    invoice_id: str | None = None

    @property
    def cause(self) -> str:
        """The id that makes the posting unique: a cause is posted at most once."""
        cause = self.request_id or self.invoice_id
        assert cause is not None, "a posting has a cause"
        return cause


def usage_posting(*, request_id: str, tenant_id: str, amount_nanos: int) -> Posting:
    """Revenue is earned when usage happens: the tenant owes the amount, unbilled, and revenue grows."""
    return Posting(
        request_id=request_id,
        legs=(Leg(AccountRef("usage_unbilled", tenant_id), amount_nanos), Leg(AccountRef("revenue"), -amount_nanos)),
    )


def invoice_posting(*, invoice_id: str, tenant_id: str, amount_nanos: int, billed_nanos: int) -> Posting:
    """An invoice turns unbilled usage into a receivable of whole cents. The rounding has its own account."""
    return Posting(
        invoice_id=invoice_id,
        legs=(
            Leg(AccountRef("usage_unbilled", tenant_id), -amount_nanos),
            Leg(AccountRef("receivable", tenant_id), billed_nanos),
            Leg(AccountRef("rounding"), amount_nanos - billed_nanos),
        ),
    )


def post(session: Session, postings: Sequence[Posting]) -> dict[str, str]:
    """Post the transfers that do not exist yet. Returns the transfer id of each new one by its cause.

    A cause that already has its transfer changes nothing and is left out of the result. Postings are written in the
    order of their causes, so that two writers of the same events wait for each other and do not deadlock.
    """
    for posting in postings:
        assert sum(leg.amount_nanos for leg in posting.legs) == 0, f"transfer for {posting.cause} must sum to zero"
        assert (posting.request_id is None) != (posting.invoice_id is None), "one cause, not two"
    if not postings:
        return {}
    by_cause = {posting.cause: posting for posting in postings}
    assert len(by_cause) == len(postings), "each cause once"
    account_ids = _open_accounts(session, {leg.account for posting in postings for leg in posting.legs})
    now = database_now(session)
    made = session.exec(
        insert(LedgerTransfer)
        .on_conflict_do_nothing()
        .returning(col(LedgerTransfer.request_id), col(LedgerTransfer.invoice_id), col(LedgerTransfer.id)),
        params=[
            {
                "id": new_id("tr"),
                "kind": "usage" if posting.request_id else "invoice",
                "request_id": posting.request_id,
                "invoice_id": posting.invoice_id,
                "created_at": now,
            }
            for _, posting in sorted(by_cause.items())
        ],
    ).all()
    transfer_ids = {request_id or invoice_id: transfer_id for request_id, invoice_id, transfer_id in made}
    if transfer_ids:
        session.exec(
            sa.insert(LedgerEntry),
            params=[
                {
                    "transfer_id": transfer_id,
                    "account_id": account_ids[leg.account],
                    "amount_nanos": leg.amount_nanos,
                }
                for cause, transfer_id in transfer_ids.items()
                for leg in by_cause[cause].legs
            ],
        )
    return transfer_ids


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
