"""Any bytes from the stream become a valid event or a refusal with a reason, never an exception."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.usage.stream import Refusal, decode_event
from core.contracts.usage import UsageEvent

EVENT = UsageEvent(
    request_id="req_1",
    tenant_id="tn_1",
    key_id="key_1",
    base_model="base",
    adapter_id=None,
    revision_id=None,
    replica_id="rep_1",
    outcome="done",
    started_at_ms=1_795_000_000_000,
    settled_at_ms=1_795_000_000_500,
    input_tokens=10,
    cached_tokens=4,
    output_tokens=3,
    kv_page_ms=500,
)


def test_an_event_round_trips_and_unknown_fields_are_ignored():
    assert decode_event(msgspec.json.encode(EVENT)) == EVENT
    fields = msgspec.to_builtins(EVENT) | {"from_a_newer_gateway": 1}
    assert decode_event(msgspec.json.encode(fields)) == EVENT


@given(st.one_of(st.none(), st.binary(max_size=200), st.text(max_size=50).map(str.encode)))
def test_any_bytes_give_an_event_or_a_refusal(payload):
    assert isinstance(decode_event(payload), Refusal)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tenant_id": ""}, "tenant_id"),
        ({"request_id": ""}, "request_id"),
        ({"input_tokens": -1}, "input_tokens"),
        ({"cached_tokens": 11}, "cached_tokens"),
        ({"aborted_prefill_tokens": 11}, "aborted_prefill_tokens"),
        ({"output_tokens": 10**12}, "output_tokens"),
        ({"kv_page_ms": -5}, "kv_page_ms"),
        ({"settled_at_ms": 10**15}, "settled_at_ms"),
        ({"first_token_ms": -1}, "first_token_ms"),
        ({"duration_ms": 10**12}, "duration_ms"),
        ({"stall_ms": -1}, "stall_ms"),
        ({"adapter_tier": "moon"}, "adapter_tier"),
        ({"outcome": "lost"}, "outcome"),
        ({"input_tokens": 1.5}, "input_tokens"),
    ],
)
def test_impossible_values_are_refused_by_name(changes, named):
    refusal = decode_event(msgspec.json.encode(msgspec.to_builtins(EVENT) | changes))
    assert isinstance(refusal, Refusal)
    assert named in refusal.reason
