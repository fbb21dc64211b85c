"""The two parties of an invoice as they are printed on it. Pure values; an invoice keeps the ones of its date."""

from datetime import date, timedelta
from typing import Annotated, Final, Literal

import msgspec

from core import fields
from core.countries import COUNTRIES

Country = Annotated[
    str,
    msgspec.Meta(
        max_length=100,
        description="Country as two capital letters (ISO 3166-1), such as DE.",
        extra_json_schema={"enum": sorted(COUNTRIES)},
    ),
]
LegalName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=fields.ONE_LINE)]
PrintedText = Annotated[str, msgspec.Meta(max_length=200, pattern=fields.ONE_LINE_OR_EMPTY)]
PrintedLines = Annotated[tuple[PrintedText, ...], msgspec.Meta(max_length=8)]
VatId = Annotated[str, msgspec.Meta(max_length=20, pattern="^[A-Za-z0-9 .+*-]*(?!\n)$")]
Email = Annotated[str, msgspec.Meta(max_length=254, extra_json_schema={"format": "email"})]
PaymentDays = Annotated[int, msgspec.Meta(ge=0, le=365)]
TaxMode = Literal["none", "fixed"]
CollectionMethod = Literal["charge_automatically", "send_invoice"]

PAYMENT_DAYS: Final = 14


class Seller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator of the platform, who issues the invoices. ``tax`` is ``fixed`` where the operator charges tax by
    its table of rates, and ``none`` where it charges none. An invoice is due ``payment_days`` after its date;
    ``how_to_pay`` is printed on it, such as a bank account.
    """

    legal_name: Annotated[LegalName, fields.LEGAL_NAME]
    address: Annotated[PrintedLines, fields.POSTAL_ADDRESS] = ()
    country: Annotated[Country | None, fields.COUNTRY] = None
    vat_id: Annotated[VatId | None, fields.VAT_ID] = None
    tax: Annotated[TaxMode, fields.TAX] = "none"
    payment_days: Annotated[PaymentDays, fields.SELLERS_PAYMENT_DAYS] = PAYMENT_DAYS
    how_to_pay: Annotated[PrintedLines, fields.HOW_TO_PAY] = ()


class BillingProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant sets of its details on invoices. Omitted fields are empty. A VAT id is checked by its form only.
    ``order_number`` is the buyer's name for its purchase order.
    """

    legal_name: Annotated[LegalName, fields.LEGAL_NAME]
    address: Annotated[PrintedLines, fields.POSTAL_ADDRESS] = ()
    country: Annotated[Country | None, fields.COUNTRY] = None
    email: Annotated[Email | None, fields.EMAIL] = None
    vat_id: Annotated[VatId | None, fields.VAT_ID] = None
    order_number: Annotated[PrintedText | None, fields.ORDER_NUMBER] = None


class Buyer(BillingProfile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant as its invoices name it. From ``exempt_from`` to ``exempt_until`` (exclusive) it pays no tax. Its own
    ``payment_days`` replace the seller's. With ``send_invoice`` it pays by transfer until the due date, and no card is
    charged. Only admins set these four.
    """

    exempt_from: Annotated[date | None, fields.EXEMPT_FROM] = None
    exempt_until: Annotated[date | None, fields.EXEMPT_UNTIL] = None
    payment_days: Annotated[PaymentDays | None, fields.PAYMENT_DAYS] = None
    collection_method: Annotated[CollectionMethod, fields.COLLECTION_METHOD] = "charge_automatically"

    def exempt_on(self, day: date) -> bool:
        """Whether an invoice of this day has no tax."""
        if self.exempt_from is None or day < self.exempt_from:
            return False
        return self.exempt_until is None or day < self.exempt_until


class Parties(msgspec.Struct, frozen=True, kw_only=True):
    """Seller and buyer of one invoice, as far as they are known."""

    seller: Seller | None = None
    buyer: Buyer | None = None

    def due_on(self, day: date) -> date:
        """When an invoice of this day is due."""
        days = PAYMENT_DAYS if self.seller is None else self.seller.payment_days
        if self.buyer is not None and self.buyer.payment_days is not None:
            days = self.buyer.payment_days
        return day + timedelta(days=days)

    @property
    def by_transfer(self) -> bool:
        """Whether the buyer pays by transfer, and no card is charged."""
        return self.buyer is not None and self.buyer.collection_method == "send_invoice"

    def warnings(self) -> tuple[str, ...]:
        """What an invoice between these parties lacks of what invoices must show, with the fix."""
        wanted = (
            (self.seller, "seller: invoices lack {}. Set it with PUT /api/v1/admin/billing/seller."),
            (self.buyer, "buyer: invoices lack {}. Set it with PUT /api/v1/billing-profile."),
        )
        return tuple(
            text.format("the legal name and address" if party is None else "the address and country")
            for party, text in wanted
            if party is None or not (party.address and party.country)
        )
