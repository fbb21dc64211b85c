"""The two parties of an invoice as they are printed on it. Pure values; an invoice keeps the ones of its date."""

from datetime import date
from typing import Annotated, Literal

import msgspec

from core.countries import COUNTRIES

Country = Annotated[
    str,
    msgspec.Meta(
        max_length=100,
        description="Country as two capital letters (ISO 3166-1), such as DE.",
        extra_json_schema={"enum": sorted(COUNTRIES)},
    ),
]
PrintedText = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*(?!\n)$")]
VatId = Annotated[str, msgspec.Meta(max_length=20, pattern="^[A-Za-z0-9 .+*-]*(?!\n)$")]
Email = Annotated[str, msgspec.Meta(max_length=254, extra_json_schema={"format": "email"})]
TaxMode = Literal["none", "fixed"]


class Seller(msgspec.Struct, frozen=True, kw_only=True):
    """The operator of the platform, who issues the invoices. ``tax`` is ``fixed`` where the operator charges tax by
    its table of rates, and ``none`` where it charges none.
    """

    legal_name: str
    address: tuple[str, ...] = ()
    country: str | None = None
    vat_id: str | None = None
    tax: TaxMode = "none"


class Buyer(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant as its invoices name it. From ``exempt_from`` to ``exempt_until`` (exclusive) it pays no tax."""

    legal_name: str
    address: tuple[str, ...] = ()
    country: str | None = None
    email: str | None = None
    vat_id: str | None = None
    exempt_from: date | None = None
    exempt_until: date | None = None

    def exempt_on(self, day: date) -> bool:
        """Whether an invoice of this day has no tax."""
        if self.exempt_from is None or day < self.exempt_from:
            return False
        return self.exempt_until is None or day < self.exempt_until


class Parties(msgspec.Struct, frozen=True, kw_only=True):
    """Seller and buyer of one invoice, as far as they are known."""

    seller: Seller | None = None
    buyer: Buyer | None = None
