"""Publishes the tenants of a plan when one of its scheduled versions begins, and a tenant when its change of plan, its
calendar, or prices of its own begin or expire, or limits of its own expire. The days and months of its spending limits
are those of the calendar.

Fails closed: a gateway that has not received the new version yet holds and reports by the old one, and billing honors
the old prices for a while (``billing.prices.price_book``).
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from billing.prices import overrides
from billing.subscriptions import assignments, calendars
from control_plane.plans import service as plans
from control_plane.tenants import limit_overrides
from control_plane.tenants import service as tenants
from core.db import LATE_COMMITS, database_now, unit_of_work

LOOK_EVERY_S: Final = 30.0
_AHEAD: Final = timedelta(minutes=1)  # longer than the longest pause between two looks


class ScheduledVersions:
    """The worker's look at what has begun since its last look, and shortly before, in case it was committed later. The
    first look takes all that ever began, in case no worker ran when it did.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_at: datetime | None = None
        self._seen: set[tuple[str, datetime]] = set()

    def run_once(self) -> float:
        """Publish the tenants for which something has begun. Returns the seconds until something else begins."""
        with unit_of_work(self._engine) as session:
            now = database_now(session)
            after = None if self._looked_at is None else self._looked_at - LATE_COMMITS
            ahead = now + _AHEAD
            plans_ahead = plans.plans_with_scheduled_versions(session, after=after, until=ahead)
            tenants_ahead = {
                *assignments.begun_between(session, after, ahead),
                *overrides.changed_between(session, after, ahead),
                *calendars.begun_between(session, after, ahead),
                *limit_overrides.expired_between(session, after, ahead),
            }
            of_plans = {each for each in plans_ahead if each[1] <= now}
            of_tenants = {each for each in tenants_ahead if each[1] <= now}
            for plan_id in sorted({plan_id for plan_id, _ in of_plans - self._seen}):
                tenants.publish_tenants_of_plan(session, plan_id)
            for tenant_id in sorted({tenant_id for tenant_id, _ in of_tenants - self._seen}):
                tenants.begin_assigned_plan(session, tenant_id)
        self._looked_at, self._seen = now, of_plans | of_tenants
        later = (plans_ahead | tenants_ahead) - self._seen
        return min(((at - now).total_seconds() for _, at in later), default=LOOK_EVERY_S)
