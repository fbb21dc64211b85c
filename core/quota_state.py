"""Decodes the state of a quota level that the gateways' scripts keep in Redis, for display. It decides nothing.

The hash's fields are described in data_plane/gateway/quota/scripts/prelude.lua.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

MINUTE_US: Final = 60_000_000
FIELDS: Final = (
    "concurrent", "kv_pages", "month_held", "spend_held_nanos", "month_used", "month_spent_nanos", "spent_nanos",
    "gpu_held_us", "month_gpu_us", "requests_tat_us", "tokens_tat_us", "input_tat_us", "output_tat_us", "gpu_tat_us",
    "month",
)  # fmt: skip
HELD_FIELDS: Final = ("pages", "input", "output", "nanos", "gpu")


class LevelState(msgspec.Struct, frozen=True, kw_only=True):
    """One level now. ``arrivals_us`` are theoretical arrival times by rate, in microseconds from now (0 and below: the
    whole minute is free). Held tokens count against the month as well.
    """

    concurrent_requests: int
    kv_pages: int
    tokens_held: int
    spend_held_nanos: int
    tokens_this_month: int
    spent_this_month_nanos: int
    spent_nanos: int
    gpu_held_us: int
    gpu_this_month_us: int
    arrivals_us: Mapping[str, int]

    def used_of(self, rate: str, limit: int) -> int:
        """How much of a rate's bucket, which holds ``limit`` per minute, is used."""
        ahead_us = min(max(0, self.arrivals_us[rate]), MINUTE_US)
        return -(-ahead_us * limit // MINUTE_US)

    def resets_ms(self, rate: str) -> int:
        """Milliseconds until the whole bucket is free again."""
        return -(-min(max(0, self.arrivals_us[rate]), MINUTE_US) // 1000)


def read_level(stored: Sequence[bytes | None], *, now_us: int) -> LevelState:
    """A level from its hash's values in the order of ``FIELDS``, at a time of Redis's clock. A month that is over has
    no usage in the current one.
    """
    fields = dict(zip(FIELDS, stored, strict=True))
    number = {name: int(float(fields[name] or 0)) for name in FIELDS if name != "month"}
    now = datetime.fromtimestamp(now_us // 1_000_000, UTC)
    same_month = (fields["month"] or b"").decode() == now.strftime("%Y-%m")
    return LevelState(
        concurrent_requests=number["concurrent"],
        kv_pages=number["kv_pages"],
        tokens_held=number["month_held"],
        spend_held_nanos=number["spend_held_nanos"],
        tokens_this_month=number["month_used"] if same_month else 0,
        spent_this_month_nanos=number["month_spent_nanos"] if same_month else 0,
        spent_nanos=number["spent_nanos"],
        gpu_held_us=number["gpu_held_us"],
        gpu_this_month_us=number["month_gpu_us"] if same_month else 0,
        arrivals_us={
            rate: number[f"{rate}_tat_us"] - now_us if number[f"{rate}_tat_us"] else 0
            for rate in ("requests", "tokens", "input", "output", "gpu")
        },
    )


def without_expired(level: LevelState, expired: Iterable[Sequence[bytes | None]]) -> LevelState:
    """The level without the holds of reservations whose leases have expired (``HELD_FIELDS`` of each). They hold
    nothing, although no script has returned it yet.
    """
    for held in expired:
        if held[0] is None:
            continue  # it was settled or swept in between
        pages, input_tokens, output_tokens, nanos, gpu_us = (int(value or 0) for value in held)
        level = msgspec.structs.replace(
            level,
            concurrent_requests=max(0, level.concurrent_requests - 1),
            kv_pages=max(0, level.kv_pages - pages),
            tokens_held=max(0, level.tokens_held - input_tokens - output_tokens),
            spend_held_nanos=max(0, level.spend_held_nanos - nanos),
            gpu_held_us=max(0, level.gpu_held_us - gpu_us),
        )
    return level


def whole_seconds(microseconds: int) -> int:
    """Whole seconds, a begun one counted."""
    return -(-microseconds // 1_000_000)


def month_ends_ms(now_us: int) -> int:
    """The end of the current UTC month, in Unix milliseconds."""
    now = datetime.fromtimestamp(now_us // 1_000_000, UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    return round(datetime(year, month, 1, tzinfo=UTC).timestamp() * 1000)
