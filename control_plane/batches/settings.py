"""The settings of the process that runs batches. The limits of files and batches are in ``control_plane.settings``."""

from pydantic import Field

from core.settings import Fragment


class BatchWorkerSettings(Fragment):
    """Where the batch process sends lines, how many at once, and when it gives up."""

    gateway_url: str = Field(
        default="http://127.0.0.1:8080",
        pattern=r"^https?://[^\s]+$",
        description="Address of the gateways, to which the lines of batches are sent.",
    )
    batch_concurrency_max: int = Field(
        default=64,
        ge=1,
        le=256,
        description="Lines of all batches that run at once, at most. Fewer run while gateways refuse some for lack of "
        "room.",
    )
    batch_running_max: int = Field(
        default=8,
        ge=1,
        le=100,
        description="Batches that run at once. The input file of each lies on this machine's disk.",
    )
    batch_attempts_max: int = Field(
        default=5,
        ge=1,
        le=100,
        description="How many 5xx answers other than 503 a line may get, after growing pauses. With as many refusals "
        "because a limit is used up, its batch ends. Any other 429 and a 503 are repeated until the batch expires.",
    )
    batch_answer_s: float = Field(
        default=900, gt=0, description="How long the batch process waits for the answer to one line."
    )
    batch_retry_max_s: float = Field(
        default=60, gt=0, description="The longest pause before a line is sent again, whatever Retry-After asks for."
    )
    batch_rise_percent: int = Field(
        default=25,
        ge=0,
        le=1000,
        description="A batch rises to the class interactive when, at its speed so far, it would end with less than "
        "this percentage of its remaining time to spare.",
    )
