"""The spend ceiling of a tenant: the total that it may have been charged by its credit and its credit limit.

Gateways compare the ceiling with everything that the tenant ever spent, so it stays the same while credit burns as
planned. It changes when a lot begins, ends, is granted or taken back, and when an invoice is paid. The transaction that
stores it raises the alerts of a falling balance and of a credit limit, whichever process that is.
"""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.credits.balance import OpenCredit, bounds_of, read_open_credit
from billing.limits import prepaid
from billing.limits.models import SpendCeiling, SpendingSettings
from billing.models import LedgerAccount, LedgerEntry
from billing.notifications import outbox, thresholds
from billing.tax.profiles import read_parties
from billing.tax.rate_table import tax_between
from billing.usage.models import UsageMonth
from core.db import among, database_now, total

_NANOS_MAX = (1 << 53) - 1  # the largest amount that the gateways' scripts represent exactly


class Receivable(NamedTuple):
    """What a tenant owes on invoices, and how many entries say so."""

    amount_nanos: int
    entries: int


class ComputedCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """A ceiling with what it was computed from. ``usable_nanos`` is what usage may take of the credit, without what is
    held back for tax. ``headroom_nanos`` None: no limit.
    """

    terms: SpendingSettings
    credit: OpenCredit
    usable_nanos: int
    charged_nanos: int
    unbilled_nanos: int
    receivable: Receivable
    headroom_nanos: int | None

    @property
    def ceiling_nanos(self) -> int | None:
        """The total that the tenant may have been charged."""
        if self.headroom_nanos is None:
            return None
        return max(0, min(_NANOS_MAX, self.charged_nanos + self.headroom_nanos))

    @property
    def recheck_at(self) -> datetime | None:
        """When a lot begins or ends next."""
        bounds = bounds_of([state.burnable for state in self.credit.lots])
        return min((at for at in bounds if at > self.credit.now), default=None)


def terms_of(session: Session, tenant_id: str) -> SpendingSettings:
    """The tenant's terms, or those of a tenant that has none."""
    found = session.get(SpendingSettings, tenant_id)
    if found is not None:
        return found
    return SpendingSettings(
        tenant_id=tenant_id, mode="postpaid", balance_floors_nanos=[0], updated_at=database_now(session)
    )


def compute(session: Session, tenant_id: str) -> ComputedCeiling:
    """The tenant's ceiling now. The transaction must see one state of the tenant: it holds the tenant's subscription,
    or reads repeatably.
    """
    terms = terms_of(session, tenant_id)
    credit = read_open_credit(session, tenant_id, always=True)
    receivable = _receivable(session, tenant_id)
    unbilled = credit.burned.uncovered_nanos
    usable = _usable(session, tenant_id, credit)
    headrooms = []
    if terms.mode == "prepaid":
        headrooms.append(usable)
    if terms.credit_limit_nanos is not None:
        headrooms.append(terms.credit_limit_nanos - unbilled - receivable.amount_nanos)
    return ComputedCeiling(
        terms=terms,
        credit=credit,
        usable_nanos=usable,
        charged_nanos=_charged(session, tenant_id),
        unbilled_nanos=unbilled,
        receivable=receivable,
        headroom_nanos=min(headrooms, default=None),
    )


def refresh(
    session: Session, tenant_id: str, *, to_publish: bool = False, limit_lowered: bool = False
) -> ComputedCeiling:
    """Compute and store the ceiling in a transaction that holds the tenant's subscription, such as one that granted a
    lot or took it back. The caller publishes the tenant, or lets the control plane do it with ``to_publish``. A tenant
    without terms has no ceiling, and hears when its credit is used up. After ``limit_lowered``, the thresholds of the
    credit limit count again; those of a raised one that were passed do not.
    """
    before = session.get(SpendCeiling, tenant_id, with_for_update=True, populate_existing=True)
    computed = compute(session, tenant_id)
    values = {**_columns(computed), "to_publish": to_publish}
    statement = insert(SpendCeiling).values(tenant_id=tenant_id, revision=1, **values)
    session.exec(
        statement.on_conflict_do_update(
            index_elements=["tenant_id"], set_=values | {"revision": SpendCeiling.revision + 1}
        )
    )
    outbox.raise_alerts(session, tenant_id, _alerts(before, computed, limit_lowered=limit_lowered))
    return computed


def store(session: Session, before: SpendCeiling, computed: ComputedCeiling) -> bool:
    """Store a ceiling that was computed from the state in which the row was ``before``. False where it has changed
    since: then the result is too old.
    """
    changed = computed.ceiling_nanos != before.ceiling_nanos
    values = _columns(computed) | ({"to_publish": True} if changed else {})
    statement = (
        sa.update(SpendCeiling)
        .where(col(SpendCeiling.tenant_id) == before.tenant_id, col(SpendCeiling.revision) == before.revision)
        .values(revision=before.revision + 1, **values)
        .returning(col(SpendCeiling.tenant_id))
    )
    if session.execute(statement).first() is None:
        return False
    outbox.raise_alerts(session, before.tenant_id, _alerts(before, computed))
    return True


def stored_ceilings(session: Session, tenant_ids: Collection[str]) -> dict[str, int]:
    """The ceilings of those of these tenants that have one, for publishing."""
    rows = session.exec(
        select(SpendCeiling.tenant_id, SpendCeiling.ceiling_nanos).where(
            among(col(SpendCeiling.tenant_id), tenant_ids), col(SpendCeiling.ceiling_nanos).is_not(None)
        )
    )
    return {tenant_id: ceiling for tenant_id, ceiling in rows if ceiling is not None}


def take_changed(session: Session) -> list[str]:
    """The tenants whose ceilings changed since the last call that was committed. The caller publishes them in the same
    transaction.
    """
    statement = (
        sa.update(SpendCeiling)
        .where(col(SpendCeiling.to_publish))
        .values(to_publish=False)
        .returning(col(SpendCeiling.tenant_id))
    )
    return sorted(session.execute(statement).scalars())


def _columns(computed: ComputedCeiling) -> dict[str, object]:
    return {
        "ceiling_nanos": computed.ceiling_nanos,
        "balance_nanos": computed.usable_nanos,
        "unbilled_nanos": computed.unbilled_nanos,
        "receivable_nanos": computed.receivable.amount_nanos,
        "receivable_entries": computed.receivable.entries,
        "recheck_at": computed.recheck_at,
        "computed_at": computed.credit.now,
    }


def _alerts(
    before: SpendCeiling | None, computed: ComputedCeiling, *, limit_lowered: bool = False
) -> list[thresholds.Alert]:
    """The floors that the balance has fallen to since the last look, and the parts of the credit limit that were
    reached. A new lot makes floors count again; an invoice or a payment does so for the parts of the limit.
    """
    alerts = []
    if before is not None:
        alerts += thresholds.balance_alerts(
            before_nanos=before.balance_nanos,
            after_nanos=computed.usable_nanos,
            floors_nanos=computed.terms.balance_floors_nanos,
            since=max((state.lot.id for state in computed.credit.lots), default="none"),
        )
    if computed.terms.credit_limit_nanos is not None:
        used_before = 0 if before is None or limit_lowered else before.unbilled_nanos + before.receivable_nanos
        alerts += thresholds.credit_limit_alerts(
            before_nanos=used_before,
            after_nanos=computed.unbilled_nanos + computed.receivable.amount_nanos,
            limit_nanos=computed.terms.credit_limit_nanos,
            since=str(computed.receivable.entries),
        )
    return alerts


def _usable(session: Session, tenant_id: str, credit: OpenCredit) -> int:
    """What usage of now may take of the credit. A tenant without credit costs no look at taxes."""
    if not credit.lots:
        return 0
    parties, at = read_parties(session, tenant_id)
    lots = [state.burnable for state in credit.lots]
    return prepaid.usable_nanos(lots, credit.burned, tax_between(session, parties, at), credit.now)


def _charged(session: Session, tenant_id: str) -> int:
    return session.exec(select(total(UsageMonth.amount_nanos)).where(UsageMonth.tenant_id == tenant_id)).one()


def _receivable(session: Session, tenant_id: str) -> Receivable:
    statement = (
        sa.select(total(LedgerEntry.amount_nanos), sa.func.count())
        .join(LedgerAccount, col(LedgerAccount.id) == LedgerEntry.account_id)
        .where(col(LedgerAccount.kind) == "receivable", col(LedgerAccount.tenant_id) == tenant_id)
    )
    amount, entries = session.execute(statement).one()
    return Receivable(amount, entries)
