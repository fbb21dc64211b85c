"""What gateways get of tenants' spending: the ceiling of their credit, and their limits by day and month."""

from collections.abc import Callable, Collection

import msgspec
from sqlmodel import Session

from billing.limits import ceilings, spend_limits
from billing.subscriptions.calendars import calendars_of_all
from core import clock
from core.contracts.grants import SpendLimitGrant
from core.db import database_now


class PublishedSpending(msgspec.Struct, frozen=True, kw_only=True):
    """The ceiling on everything that a tenant was ever charged (None: none), and its limits in its time zone."""

    ceiling_nanos: int | None = None
    zone: str = "UTC"
    limits: tuple[SpendLimitGrant, ...] = ()

    def ceiling_with(self, month_ceiling_nanos: int | None) -> int | None:
        """The smaller of two ceilings."""
        found = (self.ceiling_nanos, month_ceiling_nanos)
        return min((ceiling for ceiling in found if ceiling is not None), default=None)


def read(session: Session, tenant_ids: Collection[str]) -> Callable[[str], PublishedSpending]:
    """A reader of the spending of these tenants, with what was spent so far."""
    of_credit = ceilings.stored_ceilings(session, tenant_ids)
    limits = spend_limits.limits_of(session, tenant_ids)
    calendars, now = calendars_of_all(session, limits), database_now(session)
    return lambda tenant_id: PublishedSpending(
        ceiling_nanos=of_credit.get(tenant_id),
        zone=calendars[tenant_id].at(now).zone if tenant_id in limits else "UTC",
        limits=tuple(
            SpendLimitGrant(
                scope=limit.scope,
                subject_id=limit.subject_id,
                window=limit.window,
                amount_nanos=limit.amount_nanos,
                window_start_ms=clock.to_ms(limit.window_start),
                spent_nanos=limit.spent_nanos,
            )
            for limit in limits.get(tenant_id, ())
        ),
    )
