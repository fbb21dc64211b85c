"""Publishes the tenants of a plan when one of its scheduled versions begins, and a tenant when its change of plan, its
calendar, or prices of its own begin or expire. The days and months of its spending limits are those of the calendar.

Fails closed: a gateway that has not received the new version yet holds and reports by the old one, and billing honors
the old prices for a while (``billing.prices.price_book``).
"""

from datetime import datetime

from sqlalchemy import Engine

from billing.prices import overrides
from billing.subscriptions import assignments, terms
from control_plane.plans import service as plans
from control_plane.tenants import service as tenants
from core.db import database_now, unit_of_work


class ScheduledVersions:
    """The worker's look at what has begun since its last look. The first look takes all that ever began, in case no
    worker ran when it did.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_at: datetime | None = None

    def run_once(self) -> bool:
        """Publish the tenants for which something has begun. Always returns False."""
        with unit_of_work(self._engine) as session:
            now = database_now(session)
            for plan_id in plans.plans_with_scheduled_versions(session, after=self._looked_at, until=now):
                tenants.publish_tenants_of_plan(session, plan_id)
            begun = {
                *assignments.begun_between(session, self._looked_at, now),
                *overrides.changed_between(session, self._looked_at, now),
                *terms.begun_between(session, self._looked_at, now),
            }
            for tenant_id in sorted(begun):
                tenants.begin_assigned_plan(session, tenant_id)
        self._looked_at = now
        return False
