"""What the control plane and replicas tell each other of canary runs, encoded as JSON as in core.contracts.

When a run is asked for, and what its result means, is not here.
"""

from typing import Literal

import msgspec


class CanaryJob(msgspec.Struct, frozen=True, kw_only=True):
    """A validated revision that some replica must run before it is ready."""

    revision_id: str
    base_model: str
    engine_name: str
    rank_class: int
    attempt: int


class CanaryRunning(msgspec.Struct, frozen=True, kw_only=True):
    """Who has taken a job; left standing by a replica that dies of it."""

    attempt: int
    replica_id: str
    boot_id: str


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. ``code`` is None when the adapter loaded, gave finite numbers and differs from the base, and
    ``canary_later`` when the run gave no verdict, for reasons that say nothing of the adapter.
    ``logprob_difference`` is the largest difference of a token's log-probability, in nats, None where one was not
    finite (JSON has no other word for it); ``load_ms`` from the store to its first token.
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
