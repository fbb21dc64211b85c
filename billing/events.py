"""From the bytes of a stream entry to a usage event that can be true, or the reason why it is refused. Pure."""

from typing import Literal

import msgspec

from billing.settings import EVENT_DURATION_MS_MAX, EVENT_KV_PAGE_MS_MAX, EVENT_TOKENS_MAX
from core.contracts.usage import UsageEvent

RefusalCode = Literal["undecodable", "impossible", "unpriced", "conflict", "unstorable"]

_UNIX_MS_MAX = 4_102_444_800_000  # 2100-01-01: a number beyond it is not in milliseconds


class Refusal(msgspec.Struct, frozen=True):
    """Why an event was not recorded, for people (reason) and for counting (code)."""

    code: RefusalCode
    reason: str


def decode(payload: bytes | None) -> UsageEvent | Refusal:
    """The event in ``payload``, or why there is none. Fields that are not known are ignored."""
    if payload is None:
        return Refusal("undecodable", 'the entry has no field "event"')
    try:
        event = msgspec.json.decode(payload, type=UsageEvent)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refusal("undecodable", str(error))
    problem = _problem(event)
    return event if problem is None else Refusal("impossible", problem)


def _problem(event: UsageEvent) -> str | None:
    """The first thing about the event that cannot be true."""
    for name in ("request_id", "tenant_id", "base_model"):
        if not getattr(event, name):
            return f"{name} is empty"
    limits = {
        "input_tokens": EVENT_TOKENS_MAX,
        "cached_tokens": event.input_tokens,
        "output_tokens": EVENT_TOKENS_MAX,
        "kv_page_ms": EVENT_KV_PAGE_MS_MAX,
        "started_at_ms": _UNIX_MS_MAX,
        "settled_at_ms": _UNIX_MS_MAX,
        "first_token_ms": EVENT_DURATION_MS_MAX,
        "duration_ms": EVENT_DURATION_MS_MAX,
        "adapter_load_ms": EVENT_DURATION_MS_MAX,
        "stall_ms": EVENT_DURATION_MS_MAX,
    }
    for name, limit in limits.items():
        if not 0 <= (value := getattr(event, name) or 0) <= limit:
            return f"{name} is {value}; it lies between 0 and {limit}"
    return None
