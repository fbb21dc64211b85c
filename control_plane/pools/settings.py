"""The settings of the process that decides how many replicas pools have."""

from typing import Self

from pydantic import Field, model_validator

from core.settings import Fragment


class FleetSettings(Fragment):
    """When pools grow and shrink between their ``replicas_min`` and ``replicas_max``."""

    fleet_load_percent: int = Field(
        default=90,
        ge=10,
        le=100,
        description="Percentage of its replicas' KV pages, or of the tokens per second at which latency was missed, at "
        "which a pool grows.",
    )
    fleet_shrink_load_percent: int = Field(
        default=80,
        ge=5,
        le=100,
        description="A pool gives up a replica if the others stay below this percentage without it. At most "
        "TENORA_FLEET_LOAD_PERCENT.",
    )
    fleet_shrink_after_s: float = Field(
        default=120, ge=0, le=86_400, description="How long a pool needs fewer replicas before it gives some up."
    )
    fleet_idle_s: float = Field(
        default=600,
        ge=0,
        le=604_800,
        description="How long a pool whose replicas_min is 0 has no request before its last replica ends.",
    )
    fleet_spare_replicas: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Replicas that a pool with requests has beside those that its load needs, so that it can lose as "
        "many at once.",
    )

    fleet_forecast: bool = Field(
        default=True,
        description="Whether a pool also has the replicas that it needed at the same time of earlier weeks, or else of "
        "earlier days, early enough that they are ready then.",
    )

    @model_validator(mode="after")
    def _check_percentages(self) -> Self:
        if self.fleet_shrink_load_percent > self.fleet_load_percent:
            raise ValueError(
                "TENORA_FLEET_SHRINK_LOAD_PERCENT is more than TENORA_FLEET_LOAD_PERCENT; lower it, or pools grow and "
                "shrink in turn"
            )
        return self
