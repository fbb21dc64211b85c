"""The table of subscriptions: how far each tenant's usage is invoiced."""

from datetime import datetime

from sqlmodel import Field, SQLModel

from billing.models import Instant


class Subscription(SQLModel, table=True):
    """A tenant as billing knows it. Usage settled before ``billed_until`` is on an invoice; None: nothing is.

    Recording reads the row FOR SHARE and a close reads it FOR UPDATE. So a record is either on the invoice that a
    close makes or marked as late for the next one, never neither.
    """

    __tablename__ = "subscriptions"

    tenant_id: str = Field(primary_key=True)
    billed_until: datetime | None = Field(default=None, sa_type=Instant)
    created_at: datetime = Field(sa_type=Instant)
