"""Which tax an invoice has and what it amounts to: pure functions of its parties, its date and the rates.

The net amount is rounded to cents first; then the tax is computed on it and rounded; the total is their sum. This is
no tax advice: the operator answers for its rates, and a VAT id is checked by its form only (``vat_ids``).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Annotated, Final

import msgspec

from billing.tax.parties import Parties
from core import fields
from core.fields import about
from core.money import distribute, tax_cents

EU: Final = frozenset({
    "AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IT", "LT", "LU", "LV",
    "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK",
})  # fmt: skip
REVERSE_CHARGE: Final = "Reverse charge: the recipient is liable for the VAT (Article 196 of Directive 2006/112/EC)."


class RateInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A tax and its rate in millionths: 190,000 is 19 %."""

    name: str
    rate_ppm: int


class TaxDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The tax of an invoice, if it has any. ``note`` is printed under it, as the law wants for a reverse charge."""

    rate: RateInForce | None = None
    note: str | None = None


class TaxLine(msgspec.Struct, frozen=True, kw_only=True):
    """One tax of an invoice or a credit note: ``rate_ppm`` millionths of ``base_cents``, rounded."""

    name: Annotated[str, about("Name of the tax.")]
    rate_ppm: Annotated[int, fields.RATE_PPM]
    base_cents: Annotated[int, about("Amount that the tax is on, in cents.")]
    tax_cents: Annotated[int, fields.TAX_CENTS]
    note: Annotated[str | None, about("Text that the law wants on the invoice; null without one.")] = None


def decide(parties: Parties, day: date, rates: Mapping[str, RateInForce | None]) -> TaxDecision:
    """The tax of an invoice of this day. ``rates`` are those in force, by country.

    A buyer in another EU country than the seller with a VAT id gets a reverse charge; without one, the rate of the
    buyer's country applies if the operator has entered any, else the seller's. A buyer outside of the EU, or of a
    seller outside of it, has the rate of its own country. A buyer without a country is taxed as one in the seller's.
    """
    seller, buyer = parties.seller, parties.buyer
    if seller is None or seller.tax == "none" or seller.country is None:
        return TaxDecision()
    if buyer is None:
        return TaxDecision(rate=rates.get(seller.country))
    if buyer.exempt_on(day):
        return TaxDecision()
    country = buyer.country or seller.country
    crosses_eu_border = country != seller.country and {country, seller.country} <= EU
    if crosses_eu_border and buyer.vat_id is not None:
        return TaxDecision(rate=RateInForce(name="VAT", rate_ppm=0), note=REVERSE_CHARGE)
    if crosses_eu_border and country not in rates:
        country = seller.country
    return TaxDecision(rate=rates.get(country))


def tax_lines(decision: TaxDecision, net_cents: int) -> list[TaxLine]:
    """The tax of a net amount as a line, or none."""
    rate = decision.rate
    if rate is None:
        return []
    return [
        TaxLine(
            name=rate.name,
            rate_ppm=rate.rate_ppm,
            base_cents=net_cents,
            tax_cents=tax_cents(net_cents, rate.rate_ppm),
            note=decision.note,
        )
    ]


def line_shares(tax_lines_cents: Iterable[int], line_cents: Sequence[int]) -> list[int]:
    """Each line's part of all taxes: every tax is shared out over the lines by largest remainder."""
    shares = [0] * len(line_cents)
    for cents in tax_lines_cents:
        shares = [total + share for total, share in zip(shares, distribute(cents, line_cents), strict=True)]
    return shares


def credited_tax(taxes: Sequence[TaxLine], *, net_cents: int, credited_before: int, credited_now: int) -> list[TaxLine]:
    """The taxes of a credit note for ``credited_now`` of an invoice's ``net_cents``, at the invoice's own rates. What
    all notes together credit of a tax is its part of the credited net, rounded; so nothing is left at the end.
    """

    def credited(tax: TaxLine, net: int) -> int:
        return distribute(tax.tax_cents, (net, net_cents - net))[0]

    return [
        TaxLine(
            name=tax.name,
            rate_ppm=tax.rate_ppm,
            base_cents=credited_now,
            tax_cents=credited(tax, credited_before + credited_now) - credited(tax, credited_before),
            note=tax.note,
        )
        for tax in taxes
    ]
