"""What one invoice of a tenant leaves to the next: a value that ``billing.charges.statement`` folds over time. Pure."""

from datetime import datetime

import msgspec

from billing.prices.quantities import UsageKind
from core.contracts.grants import ServiceTier


class Pool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Included units. ``granted`` counts the units of this period that earlier invoices of it have had, ``left`` the
    unused ones that they, or the period before, handed on. KV cache is in page-milliseconds.
    """

    quantity: UsageKind
    base_model: str | None = None
    granted: int = 0
    left: int = 0


class DiscountUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a discount is used: its amount in all, the amount in this period, and the periods. ``lapsed``: an
    invoice has said that what was left expired.
    """

    discount_id: str
    used_nanos: int = 0
    period_nanos: int = 0
    periods: int = 0
    counted_from: datetime | None = None
    lapsed: bool = False


class TierUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Units of a tiered quantity that earlier invoices of the same period have billed under one price version, without
    included ones. ``base_model`` is that of the tiered price. KV cache is in page-milliseconds.
    """

    quantity: UsageKind
    price_version_id: str
    units: int
    base_model: str | None = None
    service_tier: ServiceTier = "default"
    late: bool = False


class PeriodState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``period_start`` begins the calendar's period of ``pools``, of ``tiers``, of ``charged_nanos`` and of the
    ``period_nanos`` of discounts. ``year_nanos`` was charged since ``year_from``, when a yearly commitment began.
    ``credit_nanos`` is what a negative invoice would have paid back.
    """

    period_start: datetime | None = None
    pools: tuple[Pool, ...] = ()
    tiers: tuple[TierUse, ...] = ()
    discounts: tuple[DiscountUse, ...] = ()
    charged_nanos: int = 0
    year_from: datetime | None = None
    year_nanos: int = 0
    credit_nanos: int = 0

    def in_period(self, start: datetime) -> "PeriodState":
        """The state for an invoice in the calendar's period that begins at ``start``: in a new period, what belongs to
        one period begins again, and only units that roll over are left.
        """
        if start == self.period_start:
            return self
        return msgspec.structs.replace(
            self,
            period_start=start,
            pools=tuple(msgspec.structs.replace(pool, granted=0) for pool in self.pools if pool.left),
            tiers=(),
            discounts=tuple(msgspec.structs.replace(use, period_nanos=0) for use in self.discounts),
            charged_nanos=0,
        )

    def is_empty(self) -> bool:
        """Whether the invoice of the next period does not depend on this one."""
        return msgspec.structs.replace(self, period_start=None, tiers=(), charged_nanos=0) == PeriodState()
