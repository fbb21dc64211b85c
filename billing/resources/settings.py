"""When resources are metered, read from ``TENORA_RESOURCE_…``."""

from pydantic import Field

from core.settings import Fragment


class ResourceSettings(Fragment):
    """The billing worker's meters of adapter storage, pinned slots and cold loads."""

    resource_poll_s: int = Field(
        default=30, ge=1, le=3_600, description="How often billing looks for hours whose resources are not metered yet."
    )
    resource_delay_s: int = Field(
        default=300, ge=60, le=86_400,
        description="How long after its end an hour's storage, pins and cold loads are metered. Keep it above the "
        "longest transaction, since a change that commits later is not counted in that hour.",
    )  # fmt: skip
    resource_hours_max: int = Field(
        default=48, ge=1, le=10_000,
        description="Most missed hours that each meter fills in one run, one transaction each.",
    )  # fmt: skip
