"""The messages of canary runs between the control plane's worker and the replicas: job, claim and result.

When a run is requested and how its result is judged is not here. msgspec encodes these structs as JSON.
"""

from typing import Literal

import msgspec


class CanaryJob(msgspec.Struct, frozen=True, kw_only=True):
    """A validated revision that one replica must run before the revision is ready."""

    revision_id: str
    base_model: str
    engine_name: str
    rank_class: int
    attempt: int


class CanaryRunning(msgspec.Struct, frozen=True, kw_only=True):
    """Which replica runs a job. The claim stays in Redis if the replica dies during the run."""

    attempt: int
    replica_id: str
    boot_id: str


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. ``code`` is None when the adapter loaded, gave finite numbers and differs from the base
    model. It is ``canary_later`` when the run ended without a verdict for a reason unrelated to the adapter.
    ``logprob_difference`` is the largest difference of a token's log-probability, in nats; None if a value was not
    finite, because JSON has no such number. ``load_ms`` is the time from the object store to the first token.
    """

    revision_id: str
    attempt: int
    replica_id: str
    code: Literal["canary_failed_to_load", "canary_not_finite", "canary_no_effect", "canary_later"] | None
    message: str
    prompt: str
    base_answer: str
    adapter_answer: str
    logprob_difference: float | None
    load_ms: int
