"""What an engine counted for requests that have ended: by hour and tenant, and by id if its gateway may have missed it.

The agent reports these values to billing. They come from the engine's own state of each request and not from what was
sent to a gateway, so that reconciliation compares two independent counts. msgspec encodes these structs as JSON;
readers ignore unknown fields, so that two versions can run together.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
UnixMs = Annotated[int, msgspec.Meta(ge=0, le=4_102_444_800_000)]  # to the year 2100


class EngineUsageHour(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one engine process counted for one tenant's requests whose ids were made in one hour (UTC).

    The hour is that of the request's id and not of its end: both sides of a comparison know it exactly. Counts grow
    only. ``kv_page_ms`` has no part of the ``kv_unmeasured_requests``.
    """

    tenant_id: str
    hour_ms: UnixMs
    requests: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    output_tokens: Count = 0
    kv_page_ms: Count = 0
    kv_unmeasured_requests: Count = 0


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The final counts of one request that was aborted or whose gateway may not have received its end."""

    request_id: str
    tenant_id: str
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    kv_page_ms: Count | None
    ended_at_ms: UnixMs


class EngineUsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What changed on one engine since its agent's last report. A repeated report changes nothing."""

    replica_id: str
    boot_id: str
    base_model: str
    hours: tuple[EngineUsageHour, ...] = ()
    requests: tuple[EndedRequest, ...] = ()
