"""Reserve, renew, move and settle, each one atomic script in Redis. What a request may cost is decided by the caller.

Fails closed: without an answer in time nothing is admitted. The scripts are files beside this one.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from redis.exceptions import NoScriptError

from core import keys
from core.contracts import Limits, UsageEvent
from data_plane.gateway.limits import Verdict
from data_plane.gateway.redis_line import Argument, RedisLine

_SCRIPTS: Final = Path(__file__).parent / "scripts"
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a request takes at most. ``tokens`` is prompt plus max_tokens, times its sequences."""

    request_id: str
    tenant_id: str
    tokens: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a request ended. Without an event nothing is billed, and the whole reservation is refunded."""

    request_id: str
    tenant_id: str
    replica_id: str
    used_tokens: int
    event: UsageEvent | None


class Script:
    """One Lua file, called by its digest and loaded where the server does not know it yet."""

    def __init__(self, name: str) -> None:
        self.source = (_SCRIPTS / "holds.lua").read_text() + (_SCRIPTS / f"{name}.lua").read_text()
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, line: RedisLine, script_keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """The script's reply, of its own shape. Raises redis.RedisError."""
        try:
            return await line.call("EVALSHA", self.digest, len(script_keys), *script_keys, *arguments)
        except NoScriptError:
            await line.call("SCRIPT", "LOAD", self.source)
            return await line.call("EVALSHA", self.digest, len(script_keys), *script_keys, *arguments)


class Reservations:
    """The quota scripts over one Redis. Raises redis.RedisError where the server cannot be reached."""

    def __init__(self, line: RedisLine, *, lease_s: float, settled_marker_s: int) -> None:
        self._line = line
        self._lease_ms = int(lease_s * 1000)
        self._marker_s = settled_marker_s
        self._reserve = Script("reserve")
        self._settle = Script("settle")
        self._renew = Script("renew")
        self._move = Script("move")

    async def reserve(self, ask: Ask, limits: Limits, *, replica_id: str, replica_pages_max: int) -> Verdict:
        """Take everything ``ask`` names, or nothing. ``replica_pages_max`` of -1 only asks whether the tenant may."""
        reply = await self._reserve(
            self._line,
            (
                keys.tenant_quota(ask.tenant_id),
                keys.tenant_leases(ask.tenant_id),
                keys.reservation(ask.tenant_id, ask.request_id),
                keys.replica_held(replica_id),
                keys.replica_held_pages(replica_id),
            ),
            (
                ask.request_id,
                self._lease_ms,
                keys.reservation(ask.tenant_id, ""),
                ask.tokens,
                ask.pages,
                replica_pages_max,
                limits.requests_per_minute,
                limits.tokens_per_minute,
                limits.concurrent_requests,
                limits.kv_pages,
                limits.tokens_per_month,
            ),
        )
        return Verdict(reply[0].decode(), *reply[1:])

    async def move(
        self, request_id: str, pages: int, *, old_replica_id: str, replica_id: str, replica_pages_max: int
    ) -> bool:
        """Exchange the pages held on one replica for pages on another; False where they do not fit."""
        return bool(
            await self._move(
                self._line,
                (
                    keys.replica_held(old_replica_id),
                    keys.replica_held_pages(old_replica_id),
                    keys.replica_held(replica_id),
                    keys.replica_held_pages(replica_id),
                ),
                (request_id, self._lease_ms, pages, replica_pages_max),
            )
        )

    async def settle(self, settlement: Settlement) -> bool:
        """End a reservation; False where it has been settled before. Idempotent on the request id."""
        event = b"" if settlement.event is None else _ENCODER.encode(settlement.event)
        tenant_id, request_id = settlement.tenant_id, settlement.request_id
        return bool(
            await self._settle(
                self._line,
                (
                    keys.tenant_quota(tenant_id),
                    keys.tenant_leases(tenant_id),
                    keys.reservation(tenant_id, request_id),
                    keys.settled(tenant_id, request_id),
                    keys.USAGE_STREAM,
                    keys.replica_held(settlement.replica_id),
                    keys.replica_held_pages(settlement.replica_id),
                ),
                (request_id, settlement.used_tokens, event, self._marker_s),
            )
        )

    async def renew(self, groups: dict[tuple[str, str], list[str]]) -> int:
        """Extend leases; ``groups`` are request ids by (tenant, replica). Returns how many had run out."""
        missing = await asyncio.gather(
            *(
                self._renew(
                    self._line,
                    (keys.tenant_leases(tenant), keys.replica_held(replica)),
                    (self._lease_ms, *request_ids),
                )
                for (tenant, replica), request_ids in groups.items()
            )
        )
        return sum(missing)
