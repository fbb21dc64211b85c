"""Rows of the request log, read from entries of its stream."""

from collections.abc import Mapping
from typing import Final

import msgspec

from core import clock
from core.contracts.request_log import LoggedRequest, RequestDetails
from core.contracts.usage import UsageEvent

_ROWS: Final = msgspec.json.Decoder(list[LoggedRequest])
_EVENT: Final = msgspec.json.Decoder(UsageEvent)
_DETAILS: Final = msgspec.json.Decoder(RequestDetails)


def rows_of(entry: Mapping[bytes, bytes]) -> list[LoggedRequest]:
    """The rows of one entry of the stream: a served request, or a batch of refusals. Raises msgspec.MsgspecError or
    UnicodeDecodeError.
    """
    if (refusals := entry.get(b"refusals")) is not None:
        return _ROWS.decode(refusals)
    return [served_row(_EVENT.decode(entry.get(b"event", b"")), _DETAILS.decode(entry.get(b"details", b"{}")))]


def served_row(event: UsageEvent, details: RequestDetails) -> LoggedRequest:
    """The row of a request that a replica served. Of an estimate, no duration is known that is the whole one."""
    return LoggedRequest(
        request_id=event.request_id,
        time=clock.from_ms(event.settled_at_ms - event.duration_ms),
        outcome=event.outcome,
        tenant_id=event.tenant_id,
        key_id=event.key_id,
        model=details.model,
        model_used=details.model_used,
        route_reason=details.route_reason,
        first_request_id=details.first_request_id,
        base_model=event.base_model,
        adapter_id=event.adapter_id,
        revision_id=event.revision_id,
        rank_class=event.rank_class,
        pool=details.pool,
        pool_revision=details.pool_revision,
        replica_id=event.replica_id,
        service_tier=event.service_tier,
        service_class=event.service_class,
        adapter_tier=event.adapter_tier,
        prompt_tokens=event.input_tokens,
        cached_tokens=event.cached_tokens,
        completion_tokens=event.output_tokens,
        wait_ms=details.wait_ms,
        load_ms=None if event.adapter_tier is None else event.adapter_load_ms,
        prefill_ms=details.prefill_ms,
        ttft_ms=event.first_token_ms,
        itl_p95_ms=details.itl_p95_ms,
        whole_ms=None if event.estimated else event.duration_ms,
        finish_reason=details.finish_reason,
        code=details.code,
        price_nanos=details.price_nanos,
        estimated=event.estimated,
    )
