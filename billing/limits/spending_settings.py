"""Reads and changes how a tenant pays. Each change sets the tenant's ceiling in the same transaction."""

from typing import Annotated

import msgspec
from sqlmodel import Session

from billing.limits import ceilings
from billing.limits.ceilings import ComputedCeiling
from billing.limits.models import SpendingSettings
from billing.limits.views import AutoTopUp, BillingMode, LimitNanos, SpendingView
from billing.subscriptions.billed_until import lock_subscriptions
from core import fields
from core.db import database_now
from core.errors import InvalidRequest
from core.struct_types import view_of

PositiveNanos = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000_000)]
Floors = Annotated[tuple[LimitNanos, ...], msgspec.Meta(max_length=10)]


class SpendingPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a tenant pays. An omitted field keeps its value; null removes a limit, and turns auto top-up off.

    ``mode``: a ``prepaid`` tenant can spend at most its credit; a ``postpaid`` one is invoiced, and stops when
    what it owes reaches the credit limit.
    """

    mode: Annotated[BillingMode | msgspec.UnsetType, fields.MODE] = msgspec.UNSET
    credit_limit_nanos: Annotated[LimitNanos | msgspec.UnsetType | None, fields.CREDIT_LIMIT_NANOS] = msgspec.UNSET
    invoice_threshold_nanos: Annotated[PositiveNanos | msgspec.UnsetType | None, fields.INVOICE_THRESHOLD_NANOS] = (
        msgspec.UNSET
    )
    balance_floors_nanos: Annotated[Floors | msgspec.UnsetType, fields.BALANCE_FLOORS_NANOS] = msgspec.UNSET
    auto_top_up: Annotated[AutoTopUp | msgspec.UnsetType | None, fields.AUTO_TOP_UP] = msgspec.UNSET


def read(session: Session, tenant_id: str) -> SpendingView:
    """How the tenant pays, and what it may still spend by that."""
    return _view(ceilings.compute(session, tenant_id))


def change(session: Session, tenant_id: str, patch: SpendingPatch) -> SpendingView:
    """Change the tenant's terms. The caller publishes the tenant. Raises InvalidRequest."""
    lock_subscriptions(session, [tenant_id])
    terms = ceilings.terms_of(session, tenant_id)
    limit_before = terms.credit_limit_nanos
    for name in ("mode", "credit_limit_nanos", "invoice_threshold_nanos"):
        if (value := getattr(patch, name)) is not msgspec.UNSET:
            setattr(terms, name, value)
    if patch.balance_floors_nanos is not msgspec.UNSET:
        terms.balance_floors_nanos = sorted(set(patch.balance_floors_nanos), reverse=True)
    if patch.auto_top_up is not msgspec.UNSET:
        _set_top_up(terms, patch.auto_top_up)
    terms.updated_at = database_now(session)
    session.add(terms)
    session.flush()
    limit = terms.credit_limit_nanos
    lowered = limit is not None and (limit_before is None or limit < limit_before)
    return _view(ceilings.refresh(session, tenant_id, limit_lowered=lowered))


def _set_top_up(terms: SpendingSettings, wanted: AutoTopUp | None) -> None:
    if wanted is not None and wanted.month_cents_max < wanted.amount_cents:
        raise InvalidRequest(
            f"auto_top_up.month_cents_max is {wanted.month_cents_max}, below one top-up of {wanted.amount_cents}; use "
            "at least that.",
            param="auto_top_up",
        )
    terms.top_up_cents = None if wanted is None else wanted.amount_cents
    terms.top_up_floor_nanos = None if wanted is None else wanted.floor_nanos
    terms.top_up_month_cents_max = None if wanted is None else wanted.month_cents_max


def top_up_of(terms: SpendingSettings) -> AutoTopUp | None:
    """The tenant's auto top-up. None where it never asked for one."""
    if terms.top_up_cents is None or terms.top_up_floor_nanos is None or terms.top_up_month_cents_max is None:
        return None
    return AutoTopUp(
        amount_cents=terms.top_up_cents,
        floor_nanos=terms.top_up_floor_nanos,
        month_cents_max=terms.top_up_month_cents_max,
    )


def _view(computed: ComputedCeiling) -> SpendingView:
    return view_of(
        computed.terms,
        SpendingView,
        auto_top_up=top_up_of(computed.terms),
        balance_nanos=computed.credit.spendable_nanos(),
        unbilled_nanos=computed.unbilled_nanos,
        receivable_nanos=computed.receivable.amount_nanos,
        headroom_nanos=computed.headroom_nanos,
    )
