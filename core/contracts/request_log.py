"""The request log: what a gateway tells of each request beside its usage event, and the row that is stored and shown.

No field holds text of a prompt or an answer. A field that was not measured is None. How rows are stored is not here.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from core import fields
from core.contracts.grants import ServiceClass, ServiceTier
from core.contracts.replicas import Tier
from core.contracts.usage import Outcome
from core.fields import about

LoggedOutcome = Outcome | Literal["refused", "replayed"]
"""``replayed`` is a stored answer that was sent again for its Idempotency-Key."""


class RequestDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the log has of a served request that its usage event lacks. Fields as in ``LoggedRequest``."""

    model: str | None = None
    pool: str | None = None
    pool_revision: str | None = None
    wait_ms: int | None = None
    prefill_ms: int | None = None
    itl_p95_ms: int | None = None
    finish_reason: str | None = None
    code: str | None = None
    price_nanos: int | None = None
    model_used: str | None = None
    route_reason: str | None = None
    first_request_id: str | None = None


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a request, or ``count`` refusals of one cause."""

    request_id: Annotated[str, fields.REQUEST_ID]
    time: Annotated[datetime, about("When its body had been read; of a refusal, when it arrived.")]
    outcome: Annotated[
        LoggedOutcome,
        about(
            "done, client_gone (the caller hung up), replica_gone, timeout, gateway_gone (its gateway died), refused, "
            "or replayed (the stored answer of an Idempotency-Key)."
        ),
    ]
    tenant_id: Annotated[str, about("Id of the tenant; empty without a valid key.")] = ""
    key_id: Annotated[str | None, about("Id of the API key; null without a valid one.")] = None
    model: Annotated[
        str | None, about("Model that the caller asked for; null where it was not read or is no name of a model.")
    ] = None
    model_used: Annotated[
        str | None,
        about("Member of the group `model` that served it; null for one that named no group, or was not served."),
    ] = None
    route_reason: Annotated[
        str | None, about("Why that member: the `x-route-reason` of the answer; null likewise.")
    ] = None
    first_request_id: Annotated[
        str | None, about("Id of the request whose answer this one replaced, in a cascade; null for any other.")
    ] = None
    base_model: Annotated[str | None, about("Id of the base model that served it; null where none was found.")] = None
    adapter_id: Annotated[str | None, about("Id of the adapter; null for the base model itself.")] = None
    revision_id: Annotated[str | None, about("Id of the adapter's revision; null for the base model itself.")] = None
    rank_class: Annotated[int | None, about("Rank class of the revision; null for the base model itself.")] = None
    pool: Annotated[str | None, about("Pool of the replica; null without one.")] = None
    pool_revision: Annotated[str | None, about("Digest of the pool's revision; null without one.")] = None
    replica_id: Annotated[str | None, about("Id of the replica; null for a request that reached none.")] = None
    service_tier: Annotated[ServiceTier | None, about("Tier that applied: default or flex; null if unknown.")] = None
    service_class: Annotated[ServiceClass | None, fields.SERVICE_CLASS] = None
    adapter_tier: Annotated[
        Tier | None, about("Where the adapter was on arrival: slot, memory, disk or store; null if not reported.")
    ] = None
    prompt_tokens: Annotated[int | None, about("Prompt tokens; null for a request that reached no replica.")] = None
    cached_tokens: Annotated[int | None, about("Prompt tokens that came from the prefix cache; null likewise.")] = None
    completion_tokens: Annotated[int | None, about("Generated tokens; null likewise.")] = None
    wait_ms: Annotated[
        int | None, about("Milliseconds until it was admitted: the wait queue and its quotas. Null if never asked.")
    ] = None
    load_ms: Annotated[
        int | None, about("Milliseconds that it waited for its adapter; null without a report of the engine.")
    ] = None
    prefill_ms: Annotated[
        int | None,
        about(
            "Milliseconds from the replica to the first token without `load_ms`: the engine's own queue and the "
            "prefill. Null for an answer in one piece."
        ),
    ] = None
    ttft_ms: Annotated[
        int | None, about("Milliseconds from the read body to the first token; null for an answer in one piece.")
    ] = None
    itl_p95_ms: Annotated[
        int | None,
        about(
            "95th percentile, in milliseconds, of the pauses between arrivals of generated text; at most an eighth too "
            "large. Null for an answer in one piece."
        ),
    ] = None
    whole_ms: Annotated[
        int | None, about("Milliseconds from the read body to the end; null for one whose gateway died.")
    ] = None
    finish_reason: Annotated[
        str | None, about("Why generation ended, as the engine says; of several choices, the last one's.")
    ] = None
    code: Annotated[str | None, about("Code of the error that the caller got; null without one.")] = None
    limit: Annotated[
        str | None, about("Limit that refused it, such as `tenant.tokens_per_minute`; null without one.")
    ] = None
    price_nanos: Annotated[
        int | None, about("Price at admission, in nanodollars, before discounts; null if it was not charged.")
    ] = None
    estimated: Annotated[bool, about("Whether its gateway died: what is shown is its last checkpoint.")] = False
    count: Annotated[int, about("Refusals that the row stands for; 1 for a request.")] = 1
