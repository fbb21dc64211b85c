"""The values that show usage to other packages: by bucket, and what one request is charged for."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from core import fields
from core.fields import about

GroupBy = Literal["adapter", "base_model", "key", "revision", "service_class"]


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How requests were served, as their callers saw it. The percentiles begin at the end of reading a request; those
    to the end are of requests with outcome done. ``tiers`` is as far as the engine reported it.
    """

    first_token_ms_p50: Annotated[
        int | None, about("Median milliseconds from a streamed request to its first token; null without one.")
    ]
    first_token_ms_p99: Annotated[int | None, fields.DURATION_MS_P99]
    duration_ms_p50: Annotated[
        int | None, about("Median milliseconds from a request to the end of its answer; null without one.")
    ]
    duration_ms_p99: Annotated[int | None, fields.DURATION_MS_P99]
    stall_ms: Annotated[int, about("Milliseconds for which loads of the adapter delayed all running requests.")]
    outcomes: Annotated[dict[str, int], about("Requests by how they ended.")]
    tiers: Annotated[dict[str, int], about("Requests by the adapter's place on arrival: slot, memory, disk or store.")]
    goal_requests: Annotated[int, about("Requests of a class with a goal, without those whose caller hung up.")]
    goal_met_requests: Annotated[
        int,
        about(
            "Those of them that were answered in time: near_real_time within 1 s, "
            "interactive with a first token within 500 ms, or, in one piece, within 10 s."
        ),
    ]


class AmendmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an amendment of usage: the ``reversal`` of what was charged, or its ``replacement``. The reversal's
    quantities and amount are taken back.
    """

    part: Annotated[str, about("reversal of what was charged, or its replacement.")]
    transfer_id: Annotated[str, fields.TRANSFER_ID]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    amount_nanos: Annotated[int, fields.AMOUNT_NANOS]
    reason: Annotated[str, about("Why.")]
    actor: Annotated[str, about("Id of the admin's key that did it.")]
    created_at: Annotated[datetime, fields.CREATED_AT]


class AmendedUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What one request is charged for now, all 0 when it is voided. ``transfer_id`` is of the record."""

    request_id: Annotated[str, fields.REQUEST_ID]
    tenant_id: Annotated[str, fields.TENANT_ID]
    settled_at: Annotated[datetime, fields.SETTLED_AT]
    transfer_id: Annotated[str, fields.TRANSFER_ID]
    recorded_nanos: Annotated[int, fields.RECORDED_NANOS]
    charged_nanos: Annotated[int, fields.CHARGED_NANOS]
    voided: Annotated[bool, about("Whether the request is charged nothing.")]
    input_tokens: Annotated[int, fields.INPUT_TOKENS]
    cached_tokens: Annotated[int, fields.CACHED_TOKENS]
    aborted_prefill_tokens: Annotated[int, fields.ABORTED_PREFILL_TOKENS]
    output_tokens: Annotated[int, fields.OUTPUT_TOKENS]
    kv_page_ms: Annotated[int, fields.KV_PAGE_MS]
    amendments: Annotated[tuple[AmendmentView, ...], about("Amendments of the usage, oldest first.")]
