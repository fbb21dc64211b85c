"""The tables of taxation: who sells, who buys, and the rates. Rows are written once; the newest one holds, so a change
leaves the history and no invoice.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from core.db import Instant


class SellerVersion(SQLModel, table=True):
    """The operator's details as they were set at one time."""

    __tablename__ = "sellers"

    version: int = Field(primary_key=True)
    details: dict[str, Any] = Field(sa_type=JSONB)  # Seller
    created_at: datetime = Field(sa_type=Instant)


class BillingProfileVersion(SQLModel, table=True):
    """A tenant's details as they were set at one time."""

    __tablename__ = "billing_profiles"

    tenant_id: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    details: dict[str, Any] = Field(sa_type=JSONB)  # Buyer
    created_at: datetime = Field(sa_type=Instant)


class TaxRate(SQLModel, table=True):
    """A tax of a country from an instant on. A rate of 0 ends the tax."""

    __tablename__ = "tax_rates"
    __table_args__ = (sa.CheckConstraint("rate_ppm BETWEEN 0 AND 1000000", name="rate_possible"),)

    country: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    effective_from: datetime = Field(primary_key=True, sa_type=Instant)
    rate_ppm: int
    created_at: datetime = Field(sa_type=Instant)
