"""Stores and reads who sells and who buys. A change is a new version; invoices keep the one of their date."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from billing.locks import serialize_decision
from billing.tax.models import BillingProfileVersion, SellerVersion
from billing.tax.parties import Buyer, Parties, Seller
from billing.tax.vat_ids import checked_vat_id
from core.countries import require_country
from core.db import Instant, database_now
from core.email_addresses import require_email
from core.errors import InvalidRequest

P = TypeVar("P", Seller, Buyer)


class DatedParties(NamedTuple):
    """Seller and buyer, and the instant at which they were read."""

    parties: Parties
    at: datetime


def read_parties(session: Session, tenant_id: str) -> DatedParties:
    """The seller and the tenant as an invoice of now would name them, in one statement."""
    now = sa.func.clock_timestamp(type_=Instant)
    seller, buyer = _newest_seller().scalar_subquery(), _newest_buyer(tenant_id).scalar_subquery()
    row = session.exec(select(seller, buyer, now)).one()
    return DatedParties(Parties(seller=_party(row[0], Seller), buyer=_party(row[1], Buyer)), row[2])


def read_seller(session: Session) -> Seller | None:
    """The operator's details, if they were ever set."""
    return _party(session.exec(_newest_seller()).first(), Seller)


def read_buyer(session: Session, tenant_id: str) -> Buyer | None:
    """A tenant's details, if they were ever set."""
    return _party(session.exec(_newest_buyer(tenant_id)).first(), Buyer)


def tenants_with(text: str) -> sa.Select[tuple[str]]:
    """A query of the tenants whose current legal name or e-mail address contains the text, in any case."""
    tenant_id, version = col(BillingProfileVersion.tenant_id), col(BillingProfileVersion.version)
    newest = sa.select(tenant_id, col(BillingProfileVersion.details)).ext(distinct_on(tenant_id))
    current = newest.order_by(tenant_id, version.desc()).subquery().c
    fields = [current.details[name].astext for name in ("legal_name", "email")]
    return sa.select(current.tenant_id).where(sa.or_(*(field.icontains(text, autoescape=True) for field in fields)))


def _newest_seller() -> SelectOfScalar[Mapping[str, Any]]:
    return select(SellerVersion.details).order_by(col(SellerVersion.version).desc()).limit(1)


def _newest_buyer(tenant_id: str) -> SelectOfScalar[Mapping[str, Any]]:
    return (
        select(BillingProfileVersion.details)
        .where(BillingProfileVersion.tenant_id == tenant_id)
        .order_by(col(BillingProfileVersion.version).desc())
        .limit(1)
    )


def _party(details: Mapping[str, Any] | None, kind: type[P]) -> P | None:
    return None if details is None else msgspec.convert(details, kind)


def set_seller(session: Session, seller: Seller) -> Seller:
    """Set the operator's details for later invoices. Raises InvalidRequest for an impossible VAT id or country, and
    for tax without a country.
    """
    if seller.country is not None:
        require_country(seller.country)
    if seller.tax != "none" and seller.country is None:
        raise InvalidRequest(
            'country: set it, or set tax to "none"; tax goes by countries.', code="country_missing", param="country"
        )
    if seller.vat_id is not None:
        seller = msgspec.structs.replace(seller, vat_id=checked_vat_id(seller.vat_id, seller.country))
    serialize_decision(session, "the seller's details")
    version = session.exec(select(sa.func.coalesce(sa.func.max(SellerVersion.version), 0))).one() + 1
    session.add(SellerVersion(version=version, details=msgspec.to_builtins(seller), created_at=database_now(session)))
    session.flush()
    return seller


def lock_buyer(session: Session, tenant_id: str) -> None:
    """Let no other transaction change the tenant's details before this one ends, which reads them first."""
    serialize_decision(session, f"the billing profile of {tenant_id}")


def set_buyer(session: Session, tenant_id: str, buyer: Buyer) -> Buyer:
    """Set a tenant's details for later invoices. Raises InvalidRequest for an impossible country, e-mail address, VAT
    id or exemption.
    """
    if buyer.country is not None:
        require_country(buyer.country)
    if buyer.email is not None:
        require_email(buyer.email, param="email")
    if buyer.exempt_until is not None and (buyer.exempt_from is None or buyer.exempt_until <= buyer.exempt_from):
        raise InvalidRequest(
            "exempt_until: set a day after exempt_from, or leave it out for an exemption without an end.",
            param="exempt_until",
        )
    if buyer.vat_id is not None:
        buyer = msgspec.structs.replace(buyer, vat_id=checked_vat_id(buyer.vat_id, buyer.country))
    lock_buyer(session, tenant_id)
    newest = select(sa.func.coalesce(sa.func.max(BillingProfileVersion.version), 0)).where(
        BillingProfileVersion.tenant_id == tenant_id
    )
    session.add(
        BillingProfileVersion(
            tenant_id=tenant_id,
            version=session.exec(newest).one() + 1,
            details=msgspec.to_builtins(buyer),
            created_at=database_now(session),
        )
    )
    session.flush()
    return buyer
