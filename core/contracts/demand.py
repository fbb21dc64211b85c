"""What gateways report about the demand for replicas. Each gateway writes its report every second with a short expiry;
the fleet process and the admins' API read them all. How many replicas that means is not here.
"""

import msgspec
import structlog


class WaitingDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one base model for adapters of one rank (0: none) that wait, or were refused for lack of room in the
    last seconds. ``pages`` are the KV pages that they may take; batch requests wait for what others leave, so theirs
    do not count. ``adapters`` are short names, ``closed_pools`` the pools that do not serve these requests.
    """

    base_model: str
    rank: int
    requests: int
    pages: int
    adapters: tuple[str, ...] = ()
    closed_pools: tuple[str, ...] = ()


class ServedDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What one pool served for the gateway in the last seconds. A percentile of too few requests is None. ``adapters``
    are short names of those that run now.
    """

    pool: str
    input_tokens_per_s: float
    output_tokens_per_s: float
    ttft_p95_ms: int | None = None
    itl_p95_ms: int | None = None
    adapters: tuple[str, ...] = ()


class TenantDemand(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's batch requests on the replicas of a base model, or its others: the KV pages that running ones hold,
    and those that waiting ones may take. The smallest ``tier`` goes first; tenants of one tier share by ``weight``.
    """

    base_model: str
    tenant_id: str
    is_batch: bool
    tier: int
    weight: int
    held_pages: int
    waiting_pages: int
    waiting_requests: int
    longest_wait_ms: int


class GatewayDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one gateway process. ``tenants`` are those with the longest waits and the most pages."""

    waiting: tuple[WaitingDemand, ...] = ()
    served: tuple[ServedDemand, ...] = ()
    tenants: tuple[TenantDemand, ...] = ()


def read_demand(encoded: bytes) -> GatewayDemand | None:
    """A report as its gateway wrote it; None, which is logged, for one that cannot be read."""
    try:
        return msgspec.json.decode(encoded, type=GatewayDemand)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        structlog.get_logger().error("demand of a gateway unreadable", error=str(error))
        return None
