"""Keeps the spending of tenants with tiers, included usage or prices of resources current: it adjusts the periods of
tenants whose usage was recorded or whose resources were metered, and then corrects their quotas, which gateways had
counted at the highest price and without resources.

An adjustment is on the ledger before the quota follows. If the worker dies in between, the next worker compares the
quotas of all these tenants as it starts; if Redis fails, the tenant is due again.
"""

from collections.abc import Iterable
from datetime import timedelta

import redis as redis_client
import sqlalchemy as sa

from billing.charges.inputs import period_start
from billing.charges.period import charge_period
from billing.each_tenant import each_tenant
from billing.prices import price_book
from billing.quotas import rebuild
from billing.resources.metering import MeteredTenants
from billing.subscriptions.billed_until import lock_billed_until, read_billed_until
from billing.subscriptions.calendars import calendars_of
from billing.usage.metering import ActiveTenants
from core.db import database_now, unit_of_work
from core.errors import NotFound
from core.loops import AFTER_PAUSE, Seconds


class AdjustmentRunner:
    """One worker's look at the tenants that it recorded usage for or whose resources were metered, and at all tenants
    when it starts.
    """

    def __init__(
        self, engine: sa.Engine, redis: redis_client.Redis, active: ActiveTenants, *, price_age_max: timedelta
    ) -> None:
        self._engine = engine
        self._redis = redis
        self._active = active
        self._metered = MeteredTenants(engine)
        self._price_age_max = price_age_max
        self._waiting: set[str] = set()
        self._started = False

    def run_once(self) -> Seconds | None:
        """Adjust every tenant that is due. Those that fail are due again at the next run. Returns the seconds until
        one is due without a change.
        """
        self._waiting |= self._active.take() | self._metered.take()
        self._waiting = set(each_tenant(self._corrected(self._waiting), "adjust", self._adjust))
        if not self._started:
            self._adjust_all()
            self._started = True
        return AFTER_PAUSE if self._waiting else None

    def _adjust(self, tenant_id: str) -> None:
        """The quota is corrected even if nothing is posted now: a close, or a run that failed, may have posted it."""
        self.adjust_tenant(tenant_id)
        self._correct_quota(tenant_id)

    def _adjust_all(self) -> None:
        """Most quotas need no correction at the start, and a comparison of all together is cheap."""
        with unit_of_work(self._engine) as session:
            subscribed = read_billed_until(session)
        tenant_ids = self._corrected(subscribed)
        failed = each_tenant(tenant_ids, "adjust", self.adjust_tenant)
        found = rebuild.drift(
            self._engine, self._redis, tenant_ids, price_age_max=self._price_age_max, only_month=False
        )
        failed += each_tenant(sorted(found), "adjust", self._correct_quota)
        self._waiting |= set(failed)

    def adjust_tenant(self, tenant_id: str) -> bool:
        """Adjust the tenant's open periods. Returns whether the ledger changed."""
        with unit_of_work(self._engine) as session:
            billed_until = lock_billed_until(session, tenant_id)
            start = period_start(session, tenant_id, billed_until)
            if start is None:
                return False
            periods = calendars_of(session, tenant_id).periods_from(start, database_now(session))
            return sum(charge_period(session, tenant_id, period)[1] != 0 for period in periods) > 0

    def _corrected(self, tenant_ids: Iterable[str]) -> list[str]:
        with unit_of_work(self._engine) as session:
            book = price_book.load(session, tenant_ids)
        return sorted(tenant_id for tenant_id in tenant_ids if book.has_corrections(tenant_id))

    def _correct_quota(self, tenant_id: str) -> None:
        try:
            rebuild.rebuild(self._engine, self._redis, tenant_id, price_age_max=self._price_age_max)
        except NotFound:
            return  # a tenant that is not published has no quota
