"""The result of a reservation, and how a caller sees it: the x-ratelimit headers, and a 429 for each limit. Pure.

The reservation itself is made in ``reservation``.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

from core.money import format_usd
from data_plane.gateway.errors import Headers, QuotaExceeded

REPLICA_PAGES: Final = "replica_pages"  # no limit of a caller: the replica is full, so the request may wait
SETTLED: Final = "settled"  # no limit either: a request with this id was billed before
ENDED: Final = "ended"  # or ended without a charge
_BUSY_RETRY_S: Final = 1.0  # for limits that have room again when a running request ends
_UNCOUNTED: Final = ("requests_per_minute", "concurrent_requests")  # limits that max_tokens does not affect
_WHOSE: Final = {
    "platform": "the platform",
    "tenant": "the plan",
    "key": "this key",
    "tenant_day": "this account for the day",
    "tenant_month": "this account for the month",
    "key_day": "this key for the day",
    "key_month": "this key for the month",
    "adapter_day": "this adapter for the day",
    "adapter_month": "this adapter for the month",
}
_RATES: Final = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "input_tokens_per_minute": "input tokens",
    "output_tokens_per_minute": "output tokens",
}


class ReservationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of reserve.lua. ``blocked_by`` is empty when the reservation was made; then ``max_tokens`` and
    ``pages`` were granted. Otherwise ``level`` names the level whose limit blocks the request, ``wait_us`` < 0 means
    that waiting never helps, and ``fits`` is the max_tokens that would fit now. The requests and tokens fields describe
    the level with the least room; a limit of -1 is no limit. ``slice_id`` is the request id of a reservation that was
    made beforehand and is used because Redis does not answer.
    """

    blocked_by: str
    level: str
    wait_us: int
    limit: int
    remaining: int
    fits: int
    max_tokens: int
    pages: int
    requests_limit: int
    requests_remaining: int
    requests_reset_us: int
    tokens_limit: int
    tokens_remaining: int
    tokens_reset_us: int
    replica_pages_held: int
    slice_id: str = ""

    @classmethod
    def from_reply(cls, reply: Sequence[Any], level_names: Sequence[str]) -> Self:
        """Read a reply of reserve.lua. It names a level by its number in ``level_names``, from 1 (0 is no level), and
        its numbers come in the order of the fields.
        """
        blocked_by, level, *numbers = reply
        return cls(
            blocked_by=blocked_by.decode(),
            level=level_names[level - 1] if level else "",
            **dict(zip(cls.__struct_fields__[2:-1], numbers, strict=True)),
        )


def duration(microseconds: int) -> str:
    """``12ms``, ``1.5s``, ``6m0s``: the format in which OpenAI sends the time until a limit is full again."""
    milliseconds = max(0, -(-microseconds // 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def rate_headers(result: ReservationResult) -> Headers:
    """The ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}`` headers; none where the limits are unknown."""
    if result.requests_limit < 0:
        return []  # the request runs on a quota slice: Redis did not answer
    return [
        (b"x-ratelimit-limit-requests", b"%d" % result.requests_limit),
        (b"x-ratelimit-remaining-requests", b"%d" % result.requests_remaining),
        (b"x-ratelimit-reset-requests", duration(result.requests_reset_us).encode()),
        (b"x-ratelimit-limit-tokens", b"%d" % result.tokens_limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % result.tokens_remaining),
        (b"x-ratelimit-reset-tokens", duration(result.tokens_reset_us).encode()),
    ]


def quota_exceeded(result: ReservationResult, *, tokens: int) -> QuotaExceeded:
    """The 429 for a request of at most ``tokens`` that a limit blocks: the limit, what would fit, and the fix."""
    whose, limit, left, never = _WHOSE[result.level], result.limit, result.remaining, result.wait_us < 0
    retry_after_s: float | None = result.wait_us / 1_000_000
    match result.blocked_by:
        case "tokens_per_month":
            code, retry_after_s = "insufficient_quota", None
            text = f"{whose} allows {limit} tokens per month; {left} are left and this request may use {tokens}"
        case "spend":
            code, retry_after_s = "insufficient_quota", None
            text = f"the spending limit of {whose} leaves {format_usd(left)} and this request may cost more"
        case rate if rate in _RATES:
            code, kind = "rate_limit_exceeded", _RATES[rate]
            text = f"{whose} allows {limit} {kind} per minute"
            if rate != "requests_per_minute":
                text += f"; this request may use {tokens} tokens" if never else f"; {left} are left"
        case "gpu_seconds_per_month" | "gpu_seconds_per_minute" as gpu:
            span = gpu.rpartition("_")[2]
            if span == "month":
                code, retry_after_s = "insufficient_quota", None
            else:
                code = "rate_limit_exceeded"
            text = f"{whose} allows {limit / 1e6:g} GPU-seconds per {span}; {left / 1e6:g} are left"
        case "concurrent_requests":
            code, retry_after_s = "concurrent_requests_exceeded", _BUSY_RETRY_S
            text = f"{whose} allows {limit} concurrent requests"
        case "kv_pages":
            code, retry_after_s = "kv_pages_exceeded", _BUSY_RETRY_S
            text = f"{whose} allows {limit} KV pages in use; this request may use {result.pages}"
            text += "" if never else f" and {left} are free"
        case other:
            raise AssertionError(f"reserve.lua named an unknown limit: {other}")
    if never:
        retry_after_s = None
    text += ". " + _fix(result, retry_after_s=retry_after_s)
    return QuotaExceeded(
        text[0].upper() + text[1:],
        code=code,
        headers=rate_headers(result),
        retry_after_s=retry_after_s,
        retryable=not never,
        max_tokens_that_fit=None if result.blocked_by in _UNCOUNTED else result.fits,
        limit=f"{result.level}.{result.blocked_by}",
    )


def _fix(result: ReservationResult, *, retry_after_s: float | None) -> str:
    """The sentence with the caller's next step. ``retry_after_s`` is None where waiting never helps."""
    if retry_after_s is not None:
        return f"Please try again in {max(1, math.ceil(retry_after_s))}s or ask for a larger limit."
    if result.blocked_by in _UNCOUNTED:
        return "Ask for a larger limit."
    if result.fits > 0:
        return f"Lower max_tokens to {result.fits} or ask for a larger limit."
    return "No max_tokens fits: shorten the prompt or ask for a larger limit."
