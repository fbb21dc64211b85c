"""What gateways get of tenants' spending: the ceiling of their credit, and their limits by day and month."""

from collections.abc import Callable

import msgspec
from sqlmodel import Session

from billing.limits import ceilings, spend_limits
from core.contracts.grants import SpendLimitGrant


class PublishedSpending(msgspec.Struct, frozen=True, kw_only=True):
    """The ceiling on everything that a tenant was ever charged (None: none), and its limits in its time zone."""

    ceiling_nanos: int | None = None
    zone: str = "UTC"
    limits: tuple[SpendLimitGrant, ...] = ()

    def ceiling_with(self, month_ceiling_nanos: int | None) -> int | None:
        """The smaller of two ceilings."""
        found = (self.ceiling_nanos, month_ceiling_nanos)
        return min((ceiling for ceiling in found if ceiling is not None), default=None)


def read(session: Session, tenant_id: str) -> PublishedSpending:
    """The spending of one tenant."""
    zone, limits = spend_limits.grants_of(session, tenant_id)
    return PublishedSpending(ceiling_nanos=ceilings.stored_ceiling(session, tenant_id), zone=zone, limits=limits)


def read_all(session: Session) -> Callable[[str], PublishedSpending]:
    """A reader for many tenants, which asks only for those that have limits."""
    of_credit, limited = ceilings.stored_ceilings(session), spend_limits.limited_tenants(session)

    def spending_of(tenant_id: str) -> PublishedSpending:
        if tenant_id in limited:
            return read(session, tenant_id)
        return PublishedSpending(ceiling_nanos=of_credit.get(tenant_id))

    return spending_of
