"""Closes each tenant's periods when they have ended and the grace for late usage is over.

A worker that was down closes every missed period on its own, in order. Several workers may run it: a close holds the
tenant's subscription, and what is closed is not closed again.
"""

from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog

from billing.charges.totals import period_start
from billing.each_tenant import each_tenant
from billing.invoices.closing import close_tenant
from billing.subscriptions.billed_until import read_billed_until
from billing.subscriptions.calendar import BillingCalendar
from core.db import database_now, unit_of_work

_log = structlog.get_logger()


class PeriodSchedule:
    """The worker's look at all subscriptions."""

    def __init__(self, engine: sa.Engine, *, grace: timedelta) -> None:
        self._engine = engine
        self._grace = grace

    def run_once(self) -> None:
        """Close what is due. A tenant that fails stops no other and is tried again at the next look."""
        with unit_of_work(self._engine) as session:
            until = database_now(session) - self._grace
            subscriptions = read_billed_until(session)
        due = [
            tenant_id
            for tenant_id, billed_until in subscriptions.items()
            if billed_until is None or BillingCalendar().period_at(billed_until).end <= until
        ]
        each_tenant(due, "close", lambda tenant_id: self._close(tenant_id, subscriptions[tenant_id], until))

    def _close(self, tenant_id: str, billed_until: datetime | None, until: datetime) -> None:
        with unit_of_work(self._engine) as session:
            start = period_start(session, tenant_id, billed_until)
        if start is None:
            return
        for end in BillingCalendar().ends_between(start, until):
            invoice = close_tenant(self._engine, tenant_id, end, scheduled=True)
            if invoice is not None:
                _log.info("period closed", tenant_id=tenant_id, invoice=invoice.number, until=end.isoformat())
