"""Lists tenants for admins: searched by text, and sorted by time, name, cost, or how near they are to a limit.

A sorted list is ranked in memory, since its keys are sums of other rooms. Between two pages a tenant may change its
place; a cursor continues after the tenant with which the page before it ended.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec
from sqlalchemy import or_
from sqlmodel import Session, col, select

from billing.costs import owned_costs
from billing.limits import spend_limits
from billing.limits.views import SpendLimitView
from billing.notifications import endpoints
from billing.tax import profiles
from billing.usage import months
from billing.usage.months import MonthUse
from control_plane.paging import Page, decode_cursor, encode_cursor, page_of
from control_plane.tenants import service
from control_plane.tenants.models import Tenant
from control_plane.tenants.schemas import ListedTenant, MonthOfTenant, TenantView
from core.contracts.grants import Limits
from core.db import database_now
from core.errors import InvalidRequest
from core.periods import month_start

TenantSort = Literal["created", "name", "cost", "near_limit"]
_PPM: Final = 1_000_000


def list_tenants(
    session: Session, *, search: str | None, sort: TenantSort, cursor: str | None, limit: int
) -> Page[ListedTenant]:
    """The tenants that contain the text in their id, name, billing profile or e-mail addresses. Raises InvalidRequest
    for a cursor of another list.
    """
    wanted = select(Tenant)
    if search:
        billed, written_to = profiles.tenants_with(search), endpoints.tenants_with(search)
        in_name = col(Tenant.name).icontains(search, autoescape=True)
        wanted = wanted.where(
            or_(in_name, col(Tenant.id) == search, col(Tenant.id).in_(billed), col(Tenant.id).in_(written_to))
        )
    view = service.viewer(session)
    if sort == "created":
        page = page_of(session, wanted, col(Tenant.id), view, cursor=cursor, limit=limit)
        return Page(data=_with_month(session, page.data), next_cursor=page.next_cursor)
    ranked = sorted(_with_month(session, [view(row) for row in session.exec(wanted)]), key=_ORDER[sort])
    begin = 0
    if (last_id := decode_cursor(cursor)) is not None:
        begin = next((place for place, tenant in enumerate(ranked, 1) if tenant.id == last_id), 0)
        if not begin:
            raise InvalidRequest(
                "cursor: its tenant is no longer in this list. Leave it out to start at the first page.",
                code="invalid_cursor",
                param="cursor",
            )
    shown = ranked[begin : begin + limit]
    following = encode_cursor(shown[-1].id) if begin + limit < len(ranked) else None
    return Page(data=shown, next_cursor=following)


def limit_used_ppm(limits: Limits, used: MonthUse, own: Iterable[SpendLimitView]) -> int:
    """How much of the monthly tokens, of the plan's spending limit or of the tenant's own is used, in millionths:
    whichever is most. Pure.
    """
    tokens = used.tokens if limits.count_cached_tokens else used.tokens - used.cached_tokens
    parts: list[tuple[int, int | None]] = [
        (tokens, limits.tokens_per_month),
        (used.amount_nanos, limits.spend_nanos_per_month),
        *((each.spent_nanos, each.amount_nanos) for each in own if each.scope == "tenant"),
    ]
    return max(_PPM if limit == 0 else part * _PPM // limit for part, limit in parts if limit is not None)


def _with_month(session: Session, tenants: Sequence[TenantView]) -> list[ListedTenant]:
    ids = [tenant.id for tenant in tenants]
    now = database_now(session)
    used = months.month_uses(session, ids, now)
    costs = owned_costs.costs_of_tenants(session, ids, since=month_start(now))
    own_limits = spend_limits.limits_of(session, ids)
    return [
        ListedTenant(
            **msgspec.structs.asdict(tenant),
            this_month=MonthOfTenant(
                tokens=used[tenant.id].tokens,
                charged_nanos=used[tenant.id].amount_nanos,
                cost_nanos=costs[tenant.id],
                limit_used_ppm=limit_used_ppm(tenant.limits, used[tenant.id], own_limits.get(tenant.id, ())),
            ),
        )
        for tenant in tenants
    ]


_ORDER: Final[dict[TenantSort, Callable[[ListedTenant], tuple[int | str, ...]]]] = {
    "name": lambda tenant: (tenant.name.casefold(), tenant.id),
    "cost": lambda tenant: (-tenant.this_month.cost_nanos, -tenant.this_month.charged_nanos, tenant.id),
    "near_limit": lambda tenant: (-tenant.this_month.limit_used_ppm, tenant.id),
}
"""Tenants without a cost yet, as where no replica has a rate, are sorted by what they are charged."""
