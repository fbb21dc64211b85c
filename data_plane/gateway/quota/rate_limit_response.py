"""What a reservation's answer means to the caller: the x-ratelimit headers, and the 429 for each limit. Pure."""

from typing import Final

import msgspec

from core.money import format_usd
from data_plane.gateway.errors import Headers, QuotaExceeded

REPLICA_PAGES: Final = "replica_pages"  # nobody's limit: the replica is full, so the request may wait
_BUSY_RETRY_S: Final = 1.0  # for limits that free themselves when a running request ends
_WHOSE: Final = {"platform": "the platform", "tenant": "the plan", "key": "this key"}
_RATES: Final = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "input_tokens_per_minute": "input tokens",
    "output_tokens_per_minute": "output tokens",
}


class Verdict(msgspec.Struct, frozen=True):
    """The answer of reserve.lua. ``blocked_by`` is empty when everything was taken; ``max_tokens`` and ``pages`` were
    granted then. Else ``level`` says whose limit it was, ``wait_us`` < 0 means never, and ``fits`` is the max_tokens
    that would fit now. Requests and tokens are of the level with the least room; a limit of -1 is none.
    ``slice_id`` is the reservation that was made beforehand, where Redis was not there to be asked.
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


def duration(microseconds: int) -> str:
    """``12ms``, ``1.5s``, ``6m0s``: how OpenAI writes the time until a limit is whole again."""
    milliseconds = max(0, -(-microseconds // 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def rate_headers(verdict: Verdict) -> Headers:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``."""
    if verdict.requests_limit < 0:
        return []  # nobody could be asked
    return [
        (b"x-ratelimit-limit-requests", b"%d" % verdict.requests_limit),
        (b"x-ratelimit-remaining-requests", b"%d" % verdict.requests_remaining),
        (b"x-ratelimit-reset-requests", duration(verdict.requests_reset_us).encode()),
        (b"x-ratelimit-limit-tokens", b"%d" % verdict.tokens_limit),
        (b"x-ratelimit-remaining-tokens", b"%d" % verdict.tokens_remaining),
        (b"x-ratelimit-reset-tokens", duration(verdict.tokens_reset_us).encode()),
    ]


def quota_exceeded(verdict: Verdict, *, tokens: int) -> QuotaExceeded:
    """The 429 for a verdict that blocks a request of at most ``tokens``: whose limit, what would fit, what to do."""
    whose, limit, left, never = _WHOSE[verdict.level], verdict.limit, verdict.remaining, verdict.wait_us < 0
    retry_after_s: float | None = verdict.wait_us / 1_000_000
    match verdict.blocked_by:
        case "tokens_per_month":
            code, retry_after_s = "insufficient_quota", None
            text = f"{whose} allows {limit} tokens a month, {left} are left, and this request may take {tokens}"
        case "spend":
            code, retry_after_s = "insufficient_quota", None
            text = f"the spending limit of {whose} leaves {format_usd(left)}, and this request may cost more"
        case rate if rate in _RATES:
            code, kind = "rate_limit_exceeded", _RATES[rate]
            text = f"{whose} allows {limit} {kind} a minute"
            if rate != "requests_per_minute":
                text += f" and this request may take {tokens} tokens" if never else f", and {left} are left"
        case "concurrent_requests":
            code, retry_after_s = "concurrent_requests_exceeded", _BUSY_RETRY_S
            text = f"{whose} allows {limit} requests at a time"
        case "kv_pages":
            code, retry_after_s = "kv_pages_exceeded", _BUSY_RETRY_S
            text = f"{whose} allows {limit} KV pages in flight, and this request may take {verdict.pages}"
            text += "" if never else f" while {left} are free"
        case other:
            raise AssertionError(f"reserve.lua named an unknown limit: {other}")
    if never and verdict.blocked_by != "concurrent_requests":
        text += (
            f"; lower max_tokens to {verdict.fits} or ask for a larger limit"
            if verdict.fits > 0
            else "; lower max_tokens, shorten the prompt or ask for a larger limit"
        )
    counted = verdict.blocked_by not in ("requests_per_minute", "concurrent_requests")
    return QuotaExceeded(
        text[0].upper() + text[1:] + ".",
        code=code,
        headers=rate_headers(verdict),
        retry_after_s=None if never else retry_after_s,
        retryable=not never,
        max_tokens_that_fit=verdict.fits if counted else None,
    )
