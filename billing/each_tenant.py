"""Does one thing for many tenants, so that a tenant for whom it fails stops no other."""

from collections.abc import Callable, Iterable

import structlog

from billing import metrics

_log = structlog.get_logger()


def each_tenant(tenant_ids: Iterable[str], task: str, act: Callable[[str], object]) -> list[str]:
    """Call ``act`` with each tenant's id. Every failure, whatever its cause, is logged and counted under ``task``.
    Returns the tenants that failed.
    """
    failed = []
    for tenant_id in tenant_ids:
        try:
            act(tenant_id)
        except Exception:  # noqa: BLE001 - one tenant must not stop the others, whatever fails
            metrics.TENANT_FAILURES.labels(task).inc()
            _log.exception("a billing task failed for a tenant", task=task, tenant_id=tenant_id)
            failed.append(tenant_id)
    return failed
