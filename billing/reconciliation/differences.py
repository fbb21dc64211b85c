"""What a reconciliation found, and how a difference between an engine and the ledger is explained. Pure: no database.

A difference is explained only by requests, each by its id: what their engine counted for one of them, minus what the
ledger has for it. Nothing is excused for its size.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

DifferenceKind = Literal[
    "engine_ledger", "cached_tokens", "sums_records", "records_transfers", "adjustments_transfers",
    "invoice_lines", "invoice_transfer", "invoice_document", "invoice_usage",
    "transfer_accounts", "transfer_balance", "stripe",
]  # fmt: skip
DifferenceUnit = Literal["token", "page_millisecond", "nanodollar", "cent", "document"]

OF_ENGINES: Final[tuple[DifferenceKind, ...]] = ("engine_ledger", "cached_tokens")
"""What ``explain`` finds."""

REQUEST_IDS_MAX = 100
"""Most ids that one difference lists."""


def unit_of(column: str) -> DifferenceUnit:
    """The unit of what a column of usage counts."""
    if column.endswith("_nanos"):
        return "nanodollar"
    return "page_millisecond" if column.endswith("_page_ms") else "token"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two counts that should be equal: ``expected`` = ``found`` + ``explained`` + ``unexplained``.

    ``subject`` names what differs: a replica, a tenant, a transfer, an invoice. ``request_ids`` are those that explain.
    """

    kind: DifferenceKind
    subject: str
    unit: DifferenceUnit
    expected: int
    found: int
    explained: int = 0
    replica_id: str | None = None
    tenant_id: str | None = None
    base_model: str | None = None
    hour: datetime | None = None
    request_ids: tuple[str, ...] = ()

    @property
    def unexplained(self) -> int:
        """What no request explains. Any value but 0 is an alarm."""
        return self.expected - self.found - self.explained

    @property
    def key(self) -> tuple[str, ...]:
        """The order of differences, which does not depend on how they were found."""
        hour = "" if self.hour is None else self.hour.isoformat()
        named = (self.replica_id or "", self.tenant_id or "", self.base_model or "", self.unit)
        return (self.kind, self.subject, hour, *named)


class CountedHour(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's requests of one tenant and hour as its engine and as the ledger counted them. The ledger's prompts
    are without aborted prefills, which engines do not count. Its page-time is what engines measured, and its cached
    tokens are those of exact records.
    """

    hour: datetime
    replica_id: str
    tenant_id: str
    base_model: str
    engine_prompt_tokens: int
    ledger_prompt_tokens: int
    engine_cached_tokens: int
    ledger_cached_tokens: int
    engine_output_tokens: int
    ledger_output_tokens: int
    engine_kv_page_ms: int
    ledger_kv_page_ms: int


class NamedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine and the ledger each have for one request. An engine that died has reported nothing, and a request
    whose gateway died before its first checkpoint is not in the ledger.

    ``was_lost``: its gateway or its replica did not see its end, so the ledger may have fewer tokens. Page-time may be
    missing in every request that was aborted, because the last report of it is older than the end.
    """

    request_id: str
    engine_prompt_tokens: int
    ledger_prompt_tokens: int
    engine_cached_tokens: int
    ledger_cached_tokens: int
    engine_output_tokens: int
    ledger_output_tokens: int
    engine_kv_page_ms: int
    ledger_kv_page_ms: int
    was_lost: bool


def explain(counted: CountedHour, requests: Sequence[NamedRequest]) -> list[Difference]:
    """The differences of one hour, in prompts, in output and in page-time. Each is compared by itself: one that is too
    high does not hide another that is too low. Of cached tokens the ledger may have fewer than the engine, never more.
    """
    found = []
    sides: tuple[tuple[DifferenceKind, str, str, DifferenceUnit], ...] = (
        ("engine_ledger", "prompt_tokens", "prompt tokens", "token"),
        ("engine_ledger", "output_tokens", "output tokens", "token"),
        ("engine_ledger", "kv_page_ms", "KV page time", "page_millisecond"),
        ("cached_tokens", "cached_tokens", "cached tokens", "token"),
    )
    for kind, name, words, unit in sides:
        expected, in_ledger = getattr(counted, f"engine_{name}"), getattr(counted, f"ledger_{name}")
        if expected == in_ledger or (kind == "cached_tokens" and expected > in_ledger):
            continue
        tails = {
            one.request_id: getattr(one, f"engine_{name}") - getattr(one, f"ledger_{name}")
            for one in requests
            if one.was_lost or unit == "page_millisecond"
        }
        explained = sum(tails.values())
        if kind == "cached_tokens":
            explained = max(explained, expected - in_ledger)
        found.append(
            Difference(
                kind=kind,
                subject=f"{counted.replica_id}: {words}",
                unit=unit,
                expected=expected,
                found=in_ledger,
                explained=explained,
                replica_id=counted.replica_id,
                tenant_id=counted.tenant_id,
                base_model=counted.base_model,
                hour=counted.hour,
                request_ids=tuple(sorted(each for each, tail in tails.items() if tail)[:REQUEST_IDS_MAX]),
            )
        )
    return found
