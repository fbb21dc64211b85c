"""Reads and changes how a tenant pays. Each change sets the tenant's ceiling in the same transaction."""

from collections.abc import Sequence
from typing import cast

import msgspec
from sqlmodel import Session

from billing.limits import ceilings
from billing.limits.ceilings import ComputedCeiling
from billing.limits.models import SpendingTerms
from billing.limits.views import AutoTopUp, BillingMode, SpendingView
from billing.subscriptions.billed_until import hold_subscriptions
from core.db import database_now
from core.errors import InvalidRequest


class TermsPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of a tenant's terms. None removes a limit."""

    mode: BillingMode | msgspec.UnsetType = msgspec.UNSET
    credit_limit_nanos: int | msgspec.UnsetType | None = msgspec.UNSET
    invoice_threshold_nanos: int | msgspec.UnsetType | None = msgspec.UNSET
    balance_floors_nanos: Sequence[int] | msgspec.UnsetType = msgspec.UNSET
    auto_top_up: AutoTopUp | msgspec.UnsetType | None = msgspec.UNSET


def read(session: Session, tenant_id: str) -> SpendingView:
    """How the tenant pays, and what it may still spend by that."""
    return _view(ceilings.compute(session, tenant_id))


def change(session: Session, tenant_id: str, patch: TermsPatch) -> SpendingView:
    """Change the tenant's terms. The caller publishes the tenant. Raises InvalidRequest."""
    hold_subscriptions(session, [tenant_id])
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


def credit_changed(session: Session, tenant_id: str, *, to_publish: bool = False) -> None:
    """Set the tenant's ceiling after a lot was granted or taken back, in the same transaction. The caller publishes the
    tenant, or lets the control plane do it with ``to_publish``. A tenant without terms has no ceiling, and hears when
    its credit is used up.
    """
    ceilings.refresh(session, tenant_id, to_publish=to_publish)


def _set_top_up(terms: SpendingTerms, wanted: AutoTopUp | None) -> None:
    if wanted is not None and wanted.month_cents_max < wanted.amount_cents:
        raise InvalidRequest(
            f"auto_top_up.month_cents_max is {wanted.month_cents_max}, below one top-up of {wanted.amount_cents}; use "
            "at least that.",
            param="auto_top_up",
        )
    terms.top_up_cents = None if wanted is None else wanted.amount_cents
    terms.top_up_floor_nanos = None if wanted is None else wanted.floor_nanos
    terms.top_up_month_cents_max = None if wanted is None else wanted.month_cents_max


def top_up_of(terms: SpendingTerms) -> AutoTopUp | None:
    """The tenant's auto top-up. None where it never asked for one."""
    if terms.top_up_cents is None or terms.top_up_floor_nanos is None or terms.top_up_month_cents_max is None:
        return None
    return AutoTopUp(
        amount_cents=terms.top_up_cents,
        floor_nanos=terms.top_up_floor_nanos,
        month_cents_max=terms.top_up_month_cents_max,
    )


def _view(computed: ComputedCeiling) -> SpendingView:
    terms = computed.terms
    return SpendingView(
        mode=cast("BillingMode", terms.mode),
        credit_limit_nanos=terms.credit_limit_nanos,
        invoice_threshold_nanos=terms.invoice_threshold_nanos,
        balance_floors_nanos=terms.balance_floors_nanos,
        auto_top_up=top_up_of(terms),
        balance_nanos=computed.credit.spendable_nanos(),
        unbilled_nanos=computed.unbilled_nanos,
        receivable_nanos=computed.receivable.amount_nanos,
        headroom_nanos=computed.headroom_nanos,
    )
