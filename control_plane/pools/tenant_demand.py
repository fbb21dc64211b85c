"""Which tenants hold pages and which wait for them now, over all gateways, for admins."""

from collections import defaultdict
from collections.abc import Iterable

from redis import Redis
from sqlmodel import Session

from control_plane.pools.demand import reports_of_gateways
from control_plane.pools.schemas import TenantDemandList, TenantDemandView
from control_plane.tenants import service as tenants
from core.contracts.demand import TenantDemand
from core.struct_types import view_of


def read(session: Session, redis: Redis) -> TenantDemandList:
    """The tenants of all reports, the longest waits first, then who holds most. Without Redis it raises."""
    reports = reports_of_gateways(redis)
    merged = merge(each for report in reports if report is not None for each in report.tenants)
    names = tenants.names_of(session, {each.tenant_id for each in merged})
    return TenantDemandList(
        gateways=len(reports),
        gateways_without_report=sum(report is None for report in reports),
        data=[
            view_of(
                each,
                TenantDemandView,
                tenant=names.get(each.tenant_id),
                tier=None if each.is_batch else each.tier,
            )
            for each in merged
        ],
    )


def merge(demands: Iterable[TenantDemand]) -> list[TenantDemand]:
    """What each tenant holds and waits for at all gateways together. While its plan changes, the better weight and tier
    count. Pure.
    """
    found: defaultdict[tuple[str, str, bool], list[TenantDemand]] = defaultdict(list)
    for each in demands:
        found[each.base_model, each.tenant_id, each.is_batch].append(each)
    merged = [
        TenantDemand(
            base_model=base_model,
            tenant_id=tenant_id,
            is_batch=is_batch,
            tier=min(each.tier for each in of_tenant),
            weight=max(each.weight for each in of_tenant),
            held_pages=sum(each.held_pages for each in of_tenant),
            waiting_pages=sum(each.waiting_pages for each in of_tenant),
            waiting_requests=sum(each.waiting_requests for each in of_tenant),
            longest_wait_ms=max(each.longest_wait_ms for each in of_tenant),
        )
        for (base_model, tenant_id, is_batch), of_tenant in found.items()
    ]
    return sorted(merged, key=lambda each: (-each.longest_wait_ms, -each.held_pages, each.tenant_id))
