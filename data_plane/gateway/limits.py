"""What a reservation's answer means to the caller: the x-ratelimit headers, and the 429 for each limit. Pure."""

from dataclasses import dataclass
from typing import Final

from core.contracts import Limits
from data_plane.gateway.errors import Headers, QuotaExceeded

REPLICA_PAGES: Final = "replica_pages"  # not the tenant's limit: the replica is full, so the request may wait
_BUSY_RETRY_S: Final = 1.0  # for limits that free themselves when a running request ends


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of reserve.lua. ``blocked_by`` is empty when everything was taken; ``wait_us`` < 0 means never."""

    blocked_by: str
    wait_us: int
    limit: int
    remaining: int
    requests_remaining: int
    requests_reset_us: int
    tokens_remaining: int
    tokens_reset_us: int
    replica_pages_held: int


def duration(microseconds: int) -> str:
    """``12ms``, ``1.5s``, ``6m0s``: how OpenAI writes the time until a limit is whole again."""
    milliseconds = max(0, -(-microseconds // 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def rate_headers(verdict: Verdict, limits: Limits) -> Headers:
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens}``."""
    return [
        (b"x-ratelimit-limit-requests", b"%d" % limits.requests_per_minute),
        (b"x-ratelimit-remaining-requests", b"%d" % verdict.requests_remaining),
        (b"x-ratelimit-reset-requests", duration(verdict.requests_reset_us).encode()),
        (b"x-ratelimit-limit-tokens", b"%d" % limits.tokens_per_minute),
        (b"x-ratelimit-remaining-tokens", b"%d" % verdict.tokens_remaining),
        (b"x-ratelimit-reset-tokens", duration(verdict.tokens_reset_us).encode()),
    ]


def quota_exceeded(verdict: Verdict, limits: Limits, *, tokens: int, pages: int) -> QuotaExceeded:
    """The 429 for a verdict that blocks, naming the limit, what was asked and what to do."""
    never = verdict.wait_us < 0
    retry_after_s: float | None = verdict.wait_us / 1_000_000
    match verdict.blocked_by:
        case "tokens_per_month":
            code, retry_after_s = "insufficient_quota", None
            text = (
                f"the plan's {limits.tokens_per_month} tokens a month leave {verdict.remaining}, "
                f"and this request may take {tokens}; lower max_tokens or ask for a larger plan"
            )
        case "requests_per_minute":
            code = "rate_limit_exceeded"
            text = f"the plan allows {limits.requests_per_minute} requests a minute"
        case "tokens_per_minute":
            code = "rate_limit_exceeded"
            text = f"the plan allows {limits.tokens_per_minute} tokens a minute, and this request may take {tokens}"
            text += "; lower max_tokens or shorten the prompt" if never else f" while {verdict.remaining} are left"
        case "concurrent_requests":
            code, retry_after_s = "concurrent_requests_exceeded", _BUSY_RETRY_S
            text = f"the plan allows {limits.concurrent_requests} requests at a time"
        case "kv_pages":
            code, retry_after_s = "kv_pages_exceeded", _BUSY_RETRY_S
            text = f"the plan allows {limits.kv_pages} KV pages in flight, and this request may take {pages}"
            text += "; lower max_tokens or shorten the prompt" if never else f" while {verdict.remaining} are free"
        case other:
            raise AssertionError(f"reserve.lua named an unknown limit: {other}")
    return QuotaExceeded(
        text[0].upper() + text[1:] + ".",
        code=code,
        headers=rate_headers(verdict, limits),
        retry_after_s=None if never else retry_after_s,
        retryable=not never,
    )
