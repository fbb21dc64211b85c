"""What stands among the replicas for the models of outside providers, so that waiting, fairness and reservations have
one path. It is made from the snapshot.
"""

import hashlib
from typing import Final

from core.contracts.replicas import ReplicaStatus
from core.contracts.routes import BaseModelRoute, ProviderRoute
from core.kv_pages import PAGE_TOKENS, pages_for
from data_plane.gateway.scheduling.replicas import OutsideModel
from data_plane.gateway.state.snapshot import Tables

_BOOT_CHARS: Final = 16


def provider_replicas(tables: Tables | None) -> list[OutsideModel]:
    """One for each model whose provider may get requests."""
    routes = () if tables is None else tables.base_models.values()
    return [
        _of(route, route.provider) for route in routes if route.provider is not None and route.provider.requests_max > 0
    ]


def _of(route: BaseModelRoute, provider: ProviderRoute) -> OutsideModel:
    """Circuit breakers know a replica by its id and its boot: here the provider with the model, and its address with
    the key. So each has a breaker of its own, and a new key or address begins with a closed one.
    """
    reached_by = f"{provider.url} {provider.model} {provider.sealed_key}"
    context_pages = pages_for(route.context_tokens)
    pages = provider.requests_max * context_pages
    status = ReplicaStatus(
        id=f"{provider.provider_id}.{route.id}",
        url=provider.url,
        base_model=route.id,
        state="ready",
        boot_id=hashlib.sha256(reached_by.encode()).hexdigest()[:_BOOT_CHARS],
        block_tokens=PAGE_TOKENS,
        pages_total=pages,
        pages_free=pages,
        slots=0,
        running_requests=0,
        waiting_requests=0,
        heartbeat_ms=0,
    )
    return OutsideModel(status, context_pages)
