"""Keeps tenants' ceilings current: after usage, at the instants at which lots begin and end, and after invoices and
payments. It also posts what expired lots lost.

A ceiling is computed from one state of the tenant, without locks, and stored only if no other process stored a newer
one. Fails closed: while it does not run, gateways keep the last ceiling, and usage lowers what is left of it.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlmodel import Session, col, select

from billing import metrics
from billing.credits import lots
from billing.credits.models import CreditLot
from billing.each_tenant import each_tenant
from billing.limits import ceilings
from billing.limits.models import SpendCeiling
from billing.limits.spending_settings import top_up_of
from billing.usage.metering import ActiveTenants
from core.db import LATE_COMMITS, database_now, unit_of_work
from core.loops import AFTER_PAUSE, Seconds

_LEFT: Final = sa.text("""
SELECT s.tenant_id FROM subscriptions s
WHERE s.ended_at IS NOT NULL AND s.billed_until >= s.ended_at AND EXISTS (
    SELECT FROM credit_lots l WHERE l.tenant_id = s.tenant_id AND l.kind = 'promotional' AND 0 < (
        SELECT balance_nanos FROM credit_entries e WHERE e.lot_id = l.id ORDER BY number DESC LIMIT 1
    )
)
""")
_LEFT_EVERY: Final = timedelta(minutes=1)
_INVOICED: Final = sa.text("""
SELECT c.tenant_id FROM spend_ceilings c
LEFT JOIN accounts a ON a.tenant_id = c.tenant_id AND a.kind = 'receivable'
WHERE c.receivable_entries <> (SELECT count(*) FROM entries e WHERE e.account_id = a.id)
""")
TOP_UPS_EVERY: Final = timedelta(minutes=1)  # also without usage: a day after a failure, in a new month
_LOW: Final = sa.text("""
SELECT c.tenant_id FROM spend_ceilings c JOIN spending_terms t ON t.tenant_id = c.tenant_id
WHERE c.balance_nanos <= t.top_up_floor_nanos
""")


class SpendingRunner:
    """One worker's look at the tenants that have a ceiling or expired credit.

    ``invoice_now`` closes a tenant's open period at an instant. ``buy_credit`` buys credit for a tenant if that is due;
    without it, none is bought.
    Tenants that want credit bought and whose balance is low are looked at after ``top_ups_every`` too.
    """

    def __init__(
        self,
        engine: sa.Engine,
        active: ActiveTenants,
        *,
        invoice_now: Callable[[str, datetime], object],
        buy_credit: Callable[[str], None] | None = None,
        top_ups_every: timedelta = TOP_UPS_EVERY,
    ) -> None:
        self._engine = engine
        self._active = active
        self._invoice_now = invoice_now
        self._buy_credit = buy_credit
        self._top_ups_every = top_ups_every
        self._waiting: set[str] = set()
        self._expiring: set[str] = set()
        self._looked_at: datetime | None = None
        self._left_at: datetime | None = None
        self._low_at: datetime | None = None

    def run_once(self) -> Seconds | None:
        """Look at every tenant that is due. Those that fail are due again at the next run. Returns the seconds until
        one is due without a change.
        """
        self._waiting |= self._active.take()
        with unit_of_work(self._engine) as session:
            now = database_now(session)
            due = self._due(session, now) | self._low(session, now)
            self._expiring |= _expired(session, self._looked_at, now, self._waiting)
            next_at = session.exec(
                select(sa.func.min(SpendCeiling.recheck_at)).where(col(SpendCeiling.recheck_at) > now)
            ).one()
        self._looked_at = now
        self._waiting = set()
        self._waiting |= set(each_tenant(sorted(due), "ceiling", self._refresh))
        self._expiring = set(each_tenant(sorted(self._expiring), "lapse", self._lapse))
        if self._left_at is None or now >= self._left_at + _LEFT_EVERY:
            self._end_gifts()
            self._left_at = now
        if self._waiting or self._expiring:
            return AFTER_PAUSE
        return None if next_at is None else (next_at - now).total_seconds()

    def _due(self, session: Session, now: datetime) -> set[str]:
        """Tenants with a ceiling of which something changed, and all of them at the first look."""
        if self._looked_at is None:
            return set(session.exec(select(SpendCeiling.tenant_id)))
        named = col(SpendCeiling.tenant_id).in_(self._waiting)
        bound = col(SpendCeiling.recheck_at) <= now
        return {
            *session.exec(select(SpendCeiling.tenant_id).where(named | bound)),
            *session.connection().execute(_INVOICED).scalars(),
        }

    def _low(self, session: Session, now: datetime) -> set[str]:
        """Tenants for which credit may have to be bought, once in each interval."""
        if self._buy_credit is None or (self._low_at is not None and now < self._low_at + self._top_ups_every):
            return set()
        self._low_at = now
        return set(session.connection().execute(_LOW).scalars())

    def _refresh(self, tenant_id: str) -> None:
        with Session(self._engine, expire_on_commit=False) as session:
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            before = session.get(SpendCeiling, tenant_id)
            computed = None if before is None else ceilings.compute(session, tenant_id)
            session.expunge_all()  # the values stay readable when the transaction ends
        if before is None or computed is None:
            return
        with unit_of_work(self._engine) as session:
            if not ceilings.store(session, before, computed):
                self._waiting.add(tenant_id)
                return
        if computed.ceiling_nanos != before.ceiling_nanos:
            metrics.CEILINGS_CHANGED.inc()
        threshold = computed.terms.invoice_threshold_nanos
        if threshold is not None and computed.unbilled_nanos >= threshold:
            self._invoice_now(tenant_id, computed.credit.now)
        asked = top_up_of(computed.terms)
        if self._buy_credit and asked is not None and computed.usable_nanos <= asked.floor_nanos:
            self._buy_credit(tenant_id)

    def _end_gifts(self) -> None:
        """Take promotional credit back from tenants that have left and have their final invoice."""
        with unit_of_work(self._engine) as session:
            left = list(session.connection().execute(_LEFT).scalars())

        def void(tenant_id: str) -> None:
            with unit_of_work(self._engine) as session:
                lots.void_promotional(session, tenant_id)

        each_tenant(sorted(left), "end credit", void)

    def _lapse(self, tenant_id: str) -> None:
        with unit_of_work(self._engine) as session:
            due = lots.lapses(session, tenant_id)
        if due:
            with unit_of_work(self._engine) as session:
                lots.lapse(session, tenant_id)


def _expired(session: Session, since: datetime | None, until: datetime, active: Collection[str]) -> set[str]:
    """Tenants whose lots have expired since the last look, all at the first look, and those with expired lots whose
    usage was recorded meanwhile.
    """
    recent = sa.true() if since is None else col(CreditLot.expires_at) > since - LATE_COMMITS
    statement = select(CreditLot.tenant_id).where(
        col(CreditLot.expires_at) <= until, recent | col(CreditLot.tenant_id).in_(active)
    )
    return set(session.exec(statement.distinct()))
