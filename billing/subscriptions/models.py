"""The tables of subscriptions: how far each tenant's usage is invoiced, its billing calendars and its discounts."""

from datetime import date, datetime

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from core.db import Instant


class Subscription(SQLModel, table=True):
    """A tenant as billing knows it. Usage settled before ``billed_until`` is on an invoice; None: nothing is. Since
    ``ended_at`` the tenant owes no fees.

    Recording reads the row FOR SHARE and a close reads it FOR UPDATE. So a record is either on the invoice that a
    close makes or marked as late for the next one, never neither.
    """

    __tablename__ = "subscriptions"

    tenant_id: str = Field(primary_key=True)
    billed_until: datetime | None = Field(default=None, sa_type=Instant)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)


class TenantCalendar(SQLModel, table=True):
    """A billing calendar (``billing.subscriptions.calendar``) and the instant from which it holds. Of two from the
    same instant on, the one that was made last holds.
    """

    __tablename__ = "tenant_calendars"
    __table_args__ = (sa.CheckConstraint("interval IN ('week', 'month', 'quarter', 'year')", name="interval_known"),)

    tenant_id: str = Field(primary_key=True)
    effective_from: datetime = Field(primary_key=True, sa_type=Instant)
    created_at: datetime = Field(primary_key=True, sa_type=Instant)
    interval: str
    zone: str
    anchor: date | None = None


class Discount(SQLModel, table=True):
    """A discount that was granted to a tenant, in percent (``percent_hundredths``: 1,000 is 10 %) or as an amount. It
    applies to one charge (``once``: an amount until it is used up), to a number of ``periods`` or ``forever``, in
    periods that overlap ``[effective_from, expires_at)``. ``scope`` says which charges it lowers.
    """

    __tablename__ = "discounts"
    __table_args__ = (
        sa.CheckConstraint("(percent_hundredths IS NULL) <> (amount_nanos IS NULL)", name="percent_or_amount"),
        sa.CheckConstraint("percent_hundredths BETWEEN 1 AND 10000", name="percent_possible"),
        sa.CheckConstraint("amount_nanos > 0", name="amount_positive"),
        sa.CheckConstraint("duration IN ('once', 'periods', 'forever')", name="duration_known"),
        sa.CheckConstraint("(duration = 'periods') = (periods IS NOT NULL) AND periods > 0", name="periods_fit"),
        sa.CheckConstraint("expires_at > effective_from", name="expires_later"),
        sa.CheckConstraint("scope IN ('usage', 'fees', 'all')", name="scope_known"),
    )

    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    name: str
    percent_hundredths: int | None = None
    amount_nanos: int | None = Field(default=None, sa_type=sa.BigInteger)
    duration: str
    periods: int | None = None
    effective_from: datetime = Field(sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)
    scope: str = Field(default="all", sa_column_kwargs={"server_default": "all"})


class DiscountEnd(SQLModel, table=True):
    """The instant at which an admin ended a discount. The period of that instant has no discount."""

    __tablename__ = "discount_ends"

    discount_id: str = Field(primary_key=True, foreign_key="discounts.id")
    ended_at: datetime = Field(sa_type=Instant)
