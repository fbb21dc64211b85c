"""Closes each tenant's periods when they have ended and the grace for late usage is over.

A worker that was down closes every missed period on its own, in order. Several workers may run it: a close holds the
tenant's subscription, and what is closed is not closed again.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa
import structlog

from billing.charges.inputs import period_start
from billing.each_tenant import each_tenant
from billing.invoicing.closing import close_tenant
from billing.subscriptions.billed_until import read_billed_until
from billing.subscriptions.calendars import all_calendars
from billing.subscriptions.ending import read_ended
from core.db import database_now, unit_of_work

_log = structlog.get_logger()


class PeriodSchedule:
    """The worker's look at all subscriptions."""

    def __init__(self, engine: sa.Engine, *, grace: timedelta) -> None:
        self._engine = engine
        self._grace = grace

    def run_once(self) -> None:
        """Close what is due. A tenant that fails stops no other and is tried again at the next look. The
        final invoice of a tenant that was closed has no grace: later usage is on a supplementary one.
        """
        with unit_of_work(self._engine) as session:
            now = database_now(session)
            until = now - self._grace
            subscriptions = read_billed_until(session)
            calendars = all_calendars(session)
            ended = read_ended(session)
        due = [
            tenant_id
            for tenant_id, billed_until in subscriptions.items()
            if tenant_id in ended or billed_until is None or calendars[tenant_id].period_at(billed_until).end <= until
        ]

        def close(tenant_id: str) -> None:
            ended_at = ended.get(tenant_id)
            ends = calendars[tenant_id].ends_between
            start = self._start(tenant_id, subscriptions[tenant_id])
            if start is not None:
                self._close(tenant_id, ends(start, until) if ended_at is None else [*ends(start, ended_at), ended_at])

        each_tenant(due, "close", close)

    def _start(self, tenant_id: str, billed_until: datetime | None) -> datetime | None:
        with unit_of_work(self._engine) as session:
            return period_start(session, tenant_id, billed_until)

    def _close(self, tenant_id: str, ends: Iterable[datetime]) -> None:
        for end in ends:
            invoice = close_tenant(self._engine, tenant_id, end, scheduled=True)
            if invoice is not None:
                _log.info("period closed", tenant_id=tenant_id, invoice=invoice.number, until=end.isoformat())
