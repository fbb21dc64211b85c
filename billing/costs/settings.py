"""How replicas' windows are stored and how their cost is shared out, read from ``TENORA_COST_…``."""

from typing import Final

from pydantic import Field

from core.settings import Fragment

REPORT_DAYS_MAX: Final = 400
REPORT_ROWS_MAX: Final = 10_000
PREVIEW_HOURS_MAX: Final = 30
RATE_NANOS_MAX: Final = 1_000_000_000_000_000  # a million dollars an hour


class CostSettings(Fragment):
    """The billing worker's part of cost attribution."""

    cost_poll_s: int = Field(
        default=5, ge=1, le=600, description="Pause between two reads of the windows that replicas have reported."
    )
    cost_batch_windows_max: int = Field(
        default=500, ge=1, le=5_000, description="Most windows that billing stores in one transaction."
    )
    cost_clock_skew_s_max: int = Field(
        default=300, ge=1, le=86_400,
        description="How far a replica's clock may be ahead of Postgres before billing refuses its windows.",
    )  # fmt: skip
    cost_lost_after_s: int = Field(
        default=60, ge=0, le=3_600,
        description="How long a replica that has stopped reporting is still charged, as `lost`. Set it to the time "
        "until your platform ends or replaces a silent machine.",
    )  # fmt: skip
    cost_allocation_delay_s: int = Field(
        default=3_600, ge=0, le=86_400,
        description="How long after its end an hour's cost is shared out for good. Windows and usage that arrive later "
        "are not counted, so keep it above the time for which agents and gateways keep what they cannot send.",
    )  # fmt: skip
    cost_allocation_hours_max: int = Field(
        default=48, ge=1, le=10_000, description="Most hours that are shared out in one run of the allocation."
    )
    cost_windows_kept_days: int = Field(
        default=90, ge=7, le=3_650,
        description="How long billing keeps the windows that replicas reported. Hours that are shared out stay; an "
        "hour that has had no rate for this long is never shared out.",
    )  # fmt: skip
    cost_fit_windows_max: int = Field(
        default=50_000, ge=20, le=1_000_000, description="Most windows, the newest, that a cost function is fitted to."
    )
    cost_request_hours_max: int = Field(
        default=2, ge=1, le=48,
        description="Longest time from a request's arrival to its settlement that cost attribution looks back.",
    )  # fmt: skip
