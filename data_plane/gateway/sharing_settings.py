"""Bounds on what gateways tell one another of their tenants.

They are part of the gateway's environment, which is settings.py.
"""

from pydantic import Field

from core.settings import Fragment


class SharingSettings(Fragment):
    """How gateways share a pool of replicas."""

    sharing_tenants_max: int = Field(
        default=1024,
        ge=1,
        le=10_000,
        description="Tenants that a gateway names when it tells the others who has requests there; the rest as one.",
    )
    sharing_adapters_max: int = Field(
        default=1024,
        ge=0,
        le=100_000,
        description="Adapters in work, on all replicas together, that a gateway tells the others.",
    )
    sharing_stale_ms: int = Field(
        default=1000, ge=500, description="How long what a gateway tells of its tenants counts for the others."
    )
