"""Settings of the Ray placer, which each node of the cluster shares."""

from pydantic import Field

from core.settings import RedisSettings, TelemetrySettings
from data_plane.engine.settings import DrainSettings


class RayPlacerSettings(RedisSettings, TelemetrySettings, DrainSettings):
    """Where the cluster is, and what a replica takes of it."""

    ray_address: str = Field(
        default="auto", description="Address of the Ray cluster, or `auto` for the one that runs on this machine."
    )
    ray_resources: dict[str, float] = Field(
        default={"GPU": 1},
        min_length=1,
        description='What a replica takes of a node, as JSON, such as `{"GPU": 1}`. A node without it gets no replica.',
    )
