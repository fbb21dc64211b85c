"""Settings of the one-machine stack. Everything else it needs, it makes and keeps under ``TENORA_HOME``."""

from pathlib import Path

from pydantic import Field

from core.settings import Fragment


class StackSettings(Fragment):
    """What `tenora up` reads."""

    home: Path = Field(default=Path(".tenora"), description="Folder of all state, logs and secrets.")
    gateway_port: int = Field(default=8080, ge=1, le=65535, description="Port of the OpenAI-compatible API.")
    control_port: int = Field(default=8081, ge=1, le=65535, description="Port of the control plane's API.")
    gateway_workers: int = Field(default=1, ge=1, le=64, description="Gateway processes.")
    replicas: int = Field(
        default=1, ge=1, le=16, description="Replicas that `tenora up` starts, each bound to cores of its own."
    )
    places_pools: bool = Field(
        default=True,
        description="Whether this machine runs replicas of pools; `false` where another placer does, such as Ray's.",
    )
    up_timeout_s: float = Field(default=300, gt=0, le=3600, description="Longest wait until everything is ready.")

    @property
    def root(self) -> Path:
        """``home`` as an absolute path, since children run elsewhere."""
        return self.home.absolute()
