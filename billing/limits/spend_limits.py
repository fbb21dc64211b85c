"""A tenant's hard spending limits: on everything, one key or one adapter, for each day or month of its time zone.

Gateways enforce them in the reservation of each request. This module keeps them, says what was spent of them, and makes
what gateways get.
"""

from datetime import datetime, timedelta
from typing import Final, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.charges.adjustments import usage_adjusted_in
from billing.limits.models import SpendLimit
from billing.limits.views import LimitScope, SpendLimitView
from billing.periods import Period
from billing.subscriptions.billed_until import hold_subscriptions
from billing.subscriptions.terms import calendar_of
from billing.usage.sums import hour_of
from core import clock
from core.contracts.grants import SpendLimitGrant
from core.db import database_now
from core.errors import Conflict, NotFound
from core.ids import new_id
from core.spend_windows import SpendWindow, WindowBounds, window_at

_HOUR: Final = timedelta(hours=1)
SPEND_LIMITS_MAX: Final = 100  # of one tenant: gateways look at each of them for every request

_SPENT: Final = sa.text("""
SELECT coalesce(sum(nanos), 0)::bigint FROM (
    SELECT input_nanos + cached_input_nanos + output_nanos + kv_nanos AS nanos FROM usage_hours
    WHERE tenant_id = :tenant_id AND hour >= :whole_from AND hour < :whole_until
        AND (:key_id = '' OR key_id = :key_id) AND (:adapter_id = '' OR adapter_id = :adapter_id)
  UNION ALL
    SELECT amount_nanos FROM usage_records
    WHERE tenant_id = :tenant_id
        AND (settled_at >= :start AND settled_at < :whole_from OR settled_at >= :whole_until AND settled_at < :end)
        AND (:key_id = '' OR key_id = :key_id) AND (:adapter_id = '' OR adapter_id = :adapter_id)
) used
""")


def set_limit(
    session: Session, *, tenant_id: str, scope: LimitScope, subject_id: str, window: SpendWindow, amount_nanos: int
) -> SpendLimitView:
    """Set a limit; one of the same subject and window is replaced. The caller publishes the tenant. Raises Conflict
    when the tenant has too many.
    """
    hold_subscriptions(session, [tenant_id])
    now = database_now(session)
    others = session.exec(
        select(sa.func.count()).where(
            SpendLimit.tenant_id == tenant_id,
            sa.tuple_(col(SpendLimit.scope), col(SpendLimit.subject_id), col(SpendLimit.window_kind))
            != (scope, subject_id, window),
        )
    ).one()
    if others >= SPEND_LIMITS_MAX:
        raise Conflict(
            f"The tenant has {SPEND_LIMITS_MAX} spending limits already. Delete one first.",
            code="too_many_spend_limits",
        )
    statement = insert(SpendLimit).values(
        id=new_id("spl"),
        tenant_id=tenant_id,
        scope=scope,
        subject_id=subject_id,
        window_kind=window,
        amount_nanos=amount_nanos,
        created_at=now,
        updated_at=now,
    )
    limit_id: str = session.execute(
        statement.on_conflict_do_update(
            index_elements=["tenant_id", "scope", "subject_id", "window_kind"],
            set_={"amount_nanos": amount_nanos, "updated_at": now},
        ).returning(col(SpendLimit.id))
    ).scalar_one()
    return get_limit(session, tenant_id=tenant_id, limit_id=limit_id)


def get_limit(session: Session, *, tenant_id: str, limit_id: str) -> SpendLimitView:
    """One limit of the tenant. Raises NotFound."""
    now = database_now(session)
    return _view(session, _find(session, tenant_id, limit_id), calendar_of(session, tenant_id, now).zone, now)


def list_limits(session: Session, tenant_id: str) -> list[SpendLimitView]:
    """The tenant's limits, the oldest first."""
    now = database_now(session)
    zone = calendar_of(session, tenant_id, now).zone
    return [_view(session, limit, zone, now) for limit in _limits(session, tenant_id)]


def delete_limit(session: Session, *, tenant_id: str, limit_id: str) -> None:
    """Remove a limit. The caller publishes the tenant. Raises NotFound."""
    session.delete(_find(session, tenant_id, limit_id))
    session.flush()


def grants_of(session: Session, tenant_id: str) -> tuple[str, tuple[SpendLimitGrant, ...]]:
    """The tenant's time zone and its limits as gateways see them, with what was spent so far."""
    limits = _limits(session, tenant_id)
    if not limits:
        return "UTC", ()
    now = database_now(session)
    zone = calendar_of(session, tenant_id, now).zone
    return zone, tuple(
        SpendLimitGrant(
            scope=limit.scope,
            subject_id=limit.subject_id,
            window=limit.window,
            amount_nanos=limit.amount_nanos,
            window_start_ms=clock.to_ms(limit.window_start),
            spent_nanos=limit.spent_nanos,
        )
        for limit in (_view(session, each, zone, now) for each in limits)
    )


def limited_tenants(session: Session) -> set[str]:
    """The tenants that have a limit."""
    return set(session.exec(select(SpendLimit.tenant_id).distinct()))


def limited_since(session: Session, since: datetime) -> set[str]:
    """The tenants of which a limit was set since this instant."""
    return set(session.exec(select(SpendLimit.tenant_id).where(col(SpendLimit.updated_at) >= since).distinct()))


def spent_in(session: Session, tenant_id: str, bounds: WindowBounds, *, key_id: str = "", adapter_id: str = "") -> int:
    """What usage cost that settled in the window, in all or of one key or adapter. Only the parts of hours with which
    the window begins and ends are read from the records.
    """
    start, end = bounds
    whole_from = start if hour_of(start) == start else hour_of(start) + _HOUR
    parameters = {
        "tenant_id": tenant_id,
        "start": start,
        "end": end,
        "whole_from": whole_from,
        "whole_until": max(whole_from, hour_of(end)),
        "key_id": key_id,
        "adapter_id": adapter_id,
    }
    spent: int = session.connection().execute(_SPENT, parameters).scalar_one()
    return spent


def _limits(session: Session, tenant_id: str) -> list[SpendLimit]:
    wanted = select(SpendLimit).where(SpendLimit.tenant_id == tenant_id).order_by(col(SpendLimit.id))
    return list(session.exec(wanted))


def _find(session: Session, tenant_id: str, limit_id: str) -> SpendLimit:
    wanted = select(SpendLimit).where(SpendLimit.tenant_id == tenant_id, SpendLimit.id == limit_id)
    found = session.exec(wanted).first()
    if found is None:
        raise NotFound("Spending limit not found.", code="spend_limit_not_found")
    return found


def _view(session: Session, limit: SpendLimit, zone: str, now: datetime) -> SpendLimitView:
    window = cast("SpendWindow", limit.window_kind)
    bounds = window_at(zone, window, now)
    spent = spent_in(
        session,
        limit.tenant_id,
        bounds,
        key_id=limit.subject_id if limit.scope == "key" else "",
        adapter_id=limit.subject_id if limit.scope == "adapter" else "",
    )
    if limit.scope == "tenant":  # what tiers change belongs to no key and no adapter
        spent = max(0, spent + usage_adjusted_in(session, limit.tenant_id, Period(*bounds)))
    return SpendLimitView(
        id=limit.id,
        scope=cast("LimitScope", limit.scope),
        subject_id=limit.subject_id,
        window=window,
        amount_nanos=limit.amount_nanos,
        spent_nanos=spent,
        window_start=bounds.start,
        window_end=bounds.end,
        created_at=limit.created_at,
        updated_at=limit.updated_at,
    )
