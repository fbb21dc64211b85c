"""A tenant's hard spending limits: on everything, one key or one adapter, for each day or month of its time zone.

Gateways enforce them in the reservation of each request. This module keeps them and says what was spent of them.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from billing.charges.period import usage_adjusted_in
from billing.limits.models import SpendLimit
from billing.limits.views import LimitScope, SpendLimitView
from billing.prices.quantities import AMOUNT_SQL
from billing.subscriptions.billed_until import lock_subscriptions
from billing.subscriptions.calendars import calendars_of_all
from billing.usage.sums import hour_of
from core.db import among, database_now
from core.errors import Conflict, NotFound
from core.ids import new_id
from core.spend_windows import SpendWindow, WindowBounds, window_at
from core.struct_types import view_of

_HOUR: Final = timedelta(hours=1)
SPEND_LIMITS_MAX: Final = 100  # of one tenant: gateways look at each of them for every request

_SPENT: Final = sa.text(f"""
SELECT (
    SELECT coalesce(sum(nanos), 0)::bigint FROM (
        SELECT {AMOUNT_SQL} AS nanos FROM usage_hours u
        WHERE u.tenant_id = w.tenant_id AND hour >= whole_from AND hour < whole_until
            AND w.key_id IN ('', u.key_id) AND w.adapter_id IN ('', u.adapter_id)
      UNION ALL
        SELECT amount_nanos FROM usage_records u
        WHERE u.tenant_id = w.tenant_id AND (since < whole_from OR whole_until < until)
            AND (settled_at >= since AND settled_at < whole_from OR settled_at >= whole_until AND settled_at < until)
            AND w.key_id IN ('', u.key_id) AND w.adapter_id IN ('', u.adapter_id)
    ) used
) FROM unnest(
    cast(:tenant_ids AS text[]), cast(:key_ids AS text[]), cast(:adapter_ids AS text[]), cast(:since AS timestamptz[]),
    cast(:whole_from AS timestamptz[]), cast(:whole_until AS timestamptz[]), cast(:until AS timestamptz[])
) WITH ORDINALITY w(tenant_id, key_id, adapter_id, since, whole_from, whole_until, until, place) ORDER BY place
""")  # noqa: S608 - constants of the table of quantities


class _Window(NamedTuple):
    """A span of time, of a tenant's whole usage or that of one key or adapter."""

    tenant_id: str
    bounds: WindowBounds
    key_id: str = ""
    adapter_id: str = ""


def set_limit(
    session: Session, *, tenant_id: str, scope: LimitScope, subject_id: str, window: SpendWindow, amount_nanos: int
) -> SpendLimitView:
    """Set a limit; one of the same subject and window is replaced. The caller publishes the tenant. Raises Conflict
    when the tenant has too many.
    """
    lock_subscriptions(session, [tenant_id])
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
    before = next(
        (
            limit
            for limit in list_limits(session, tenant_id)
            if (limit.scope, limit.subject_id, limit.window) == (scope, subject_id, window)
        ),
        None,
    )
    raised_at_nanos = before.spent_nanos if before is not None and before.amount_nanos < amount_nanos else 0
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
            set_={"amount_nanos": amount_nanos, "updated_at": now, "raised_at_nanos": raised_at_nanos},
        ).returning(col(SpendLimit.id))
    ).scalar_one()
    return get_limit(session, tenant_id=tenant_id, limit_id=limit_id)


def get_limit(session: Session, *, tenant_id: str, limit_id: str) -> SpendLimitView:
    """One limit of the tenant. Raises NotFound."""
    return _views(session, [_find(session, tenant_id, limit_id)])[0]


def list_limits(session: Session, tenant_id: str) -> list[SpendLimitView]:
    """The tenant's limits, the oldest first."""
    return limits_of(session, [tenant_id]).get(tenant_id, [])


def limits_of(session: Session, tenant_ids: Collection[str]) -> dict[str, list[SpendLimitView]]:
    """The limits of those of these tenants that have any, with a few queries for all of them."""
    wanted = select(SpendLimit).where(among(col(SpendLimit.tenant_id), tenant_ids)).order_by(col(SpendLimit.id))
    limits = session.exec(wanted).all()
    found: dict[str, list[SpendLimitView]] = {}
    for row, view in zip(limits, _views(session, limits), strict=True):
        found.setdefault(row.tenant_id, []).append(view)
    return found


def alerted_nanos(session: Session, tenant_id: str) -> dict[str, int]:
    """For each limit that was raised, what was spent in that window then: nothing up to there is alerted again."""
    wanted = select(SpendLimit).where(SpendLimit.tenant_id == tenant_id, col(SpendLimit.raised_at_nanos) > 0)
    return {limit.id: limit.raised_at_nanos for limit in session.exec(wanted)}


def delete_limit(session: Session, *, tenant_id: str, limit_id: str) -> None:
    """Remove a limit. The caller publishes the tenant. Raises NotFound."""
    session.delete(_find(session, tenant_id, limit_id))
    session.flush()


def limited_since(session: Session, since: datetime) -> set[str]:
    """The tenants of which a limit was set since this instant."""
    return set(session.exec(select(SpendLimit.tenant_id).where(col(SpendLimit.updated_at) >= since).distinct()))


def spent_in(session: Session, tenant_id: str, bounds: WindowBounds) -> int:
    """What usage of the tenant cost that settled in the window."""
    return _spent(session, [_Window(tenant_id, bounds)])[0]


def _spent(session: Session, windows: Sequence[_Window]) -> list[int]:
    """What usage cost in each window. Only the parts of hours with which a window begins and ends are read from the
    records.
    """
    if not windows:
        return []
    bounds = [each.bounds for each in windows]
    whole_from = [start if hour_of(start) == start else hour_of(start) + _HOUR for start, _ in bounds]
    parameters = {
        "tenant_ids": [each.tenant_id for each in windows],
        "key_ids": [each.key_id for each in windows],
        "adapter_ids": [each.adapter_id for each in windows],
        "since": [each.start for each in bounds],
        "until": [each.end for each in bounds],
        "whole_from": whole_from,
        "whole_until": [max(first, hour_of(each.end)) for first, each in zip(whole_from, bounds, strict=True)],
    }
    return list(session.connection().execute(_SPENT, parameters).scalars())


def _find(session: Session, tenant_id: str, limit_id: str) -> SpendLimit:
    wanted = select(SpendLimit).where(SpendLimit.tenant_id == tenant_id, SpendLimit.id == limit_id)
    found = session.exec(wanted).first()
    if found is None:
        raise NotFound("Spending limit not found.", code="spend_limit_not_found")
    return found


def _views(session: Session, limits: Sequence[SpendLimit]) -> list[SpendLimitView]:
    """Limits with what was spent of them."""
    now = database_now(session)
    calendars = calendars_of_all(session, {limit.tenant_id for limit in limits})
    windows = [
        _Window(
            limit.tenant_id,
            window_at(calendars[limit.tenant_id].at(now).zone, cast("SpendWindow", limit.window_kind), now),
            key_id=limit.subject_id if limit.scope == "key" else "",
            adapter_id=limit.subject_id if limit.scope == "adapter" else "",
        )
        for limit in limits
    ]
    of_tenants = [each for each, limit in zip(windows, limits, strict=True) if limit.scope == "tenant"]
    adjusted = {  # what tiers change belongs to no key and no adapter
        bounds: usage_adjusted_in(session, {each.tenant_id for each in of_tenants if each.bounds == bounds}, bounds)
        for bounds in {each.bounds for each in of_tenants}
    }
    return [
        view_of(
            limit,
            SpendLimitView,
            window=limit.window_kind,
            spent_nanos=spent
            if limit.scope != "tenant"
            else max(0, spent + adjusted[window.bounds].get(limit.tenant_id, 0)),
            window_start=window.bounds.start,
            window_end=window.bounds.end,
        )
        for limit, window, spent in zip(limits, windows, _spent(session, windows), strict=True)
    ]
