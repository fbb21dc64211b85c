"""Enforces revocations on a replica: refuse the adapter, end its requests, remove it from every tier, write a receipt.

Fails closed. An adapter that was once read as revoked stays refused while Redis is unavailable. A starting replica
waits until it knows the revocations. A receipt is written only after the engine's own inventory shows that nothing is
left.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Literal

import msgspec
import structlog
from redis.exceptions import RedisError

from core import redis_keys
from core.adapter_names import adapter_of, digest_of
from core.clock import now_ms
from core.contracts.revocations import Revocation, RevocationReceipt
from data_plane.engine.agent import metrics
from data_plane.engine.agent.control_client import ControlClient
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.agent.snapshot_reader import SnapshotReader, SnapshotSource
from data_plane.engine.control_protocol import EngineInventory, Unloaded
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_RETRY_FIRST_S: Final = 0.5


class Revocations:
    """The revoked adapters of one base model on one engine. ``run_once`` is repeated; ``close`` cancels running
    removals.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        published: SnapshotSource,
        control: ControlClient,
        engine_state: EngineState,
        *,
        boot_id: str,
    ) -> None:
        self._settings = settings
        self._redis = published.redis
        self._control = control
        self._engine_state = engine_state
        self._boot_id = boot_id
        self._published = SnapshotReader(published, "revocations", Revocation)
        self._epoch = ""
        self._revoked: dict[str, Revocation] = {}
        self._adapters: frozenset[str] = frozenset()  # ids of the revoked adapters
        self._acknowledged: frozenset[str] | None = frozenset()  # the set that the engine refuses; None for unknown
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._receipts: dict[str, RevocationReceipt] = {}  # of removed adapters
        self._unsent_receipts: set[str] = set()
        self._unload_slots = asyncio.Semaphore(settings.revocation_unloads_max)

    def is_revoked(self, name: str) -> bool:
        """Whether this engine name must not be served, loaded or prefetched."""
        return adapter_of(name) in self._adapters

    async def run_once(self) -> None:
        """Read the revocations, make the engine refuse them, and start their removals. Raises SnapshotMissing,
        redis.RedisError, or what ControlClient raises.
        """
        try:
            await self._refresh()
        finally:  # known revocations are enforced while Redis is unavailable, too
            await self._apply()
            self._start_removals()
        await self._send_receipts()

    async def enforce_at_start(self) -> None:
        """Run once, and wait a bounded time for the removals. The engine serves no requests yet, so only its disk can
        hold adapters.
        """
        await self.run_once()
        if self._removing:
            await asyncio.wait(self._removing.values(), timeout=self._settings.revocation_start_timeout_s)

    async def close(self) -> None:
        """Cancel the removals. An adapter that is not removed has no receipt, and the next engine removes it."""
        for task in list(self._removing.values()):
            task.cancel()
        await asyncio.gather(*self._removing.values(), return_exceptions=True)

    async def _refresh(self) -> None:
        published = await self._published.changed()
        if published is None:
            return
        base_model = self._settings.base_model
        self._revoked = {field: each for field, each in published.items() if each.base_model == base_model}
        self._adapters = frozenset(each.adapter_id for each in self._revoked.values())
        if self._published.epoch != self._epoch:  # Redis may have lost receipts as well
            self._epoch = self._published.epoch
            self._unsent_receipts |= self._receipts.keys()
        for lifted in (self._receipts.keys() | self._removing.keys()) - self._revoked.keys():
            self._receipts.pop(lifted, None)
            self._unsent_receipts.discard(lifted)
            if task := self._removing.get(lifted):
                task.cancel()

    async def _apply(self) -> None:
        """Send a changed set to the engine. Beyond its limit, only the most recently revoked adapters are sent: the
        others left every tier long ago, and no gateway has a route to them.
        """
        limit = self._settings.revoked_adapters_max
        newest = sorted(self._revoked.values(), key=lambda each: each.id, reverse=True)
        applied = frozenset(islice(dict.fromkeys(each.adapter_id for each in newest), limit))
        if applied == self._acknowledged:
            return
        beyond = len(self._adapters) - len(applied)
        metrics.REVOKED.set(len(applied))
        metrics.REVOKED_BEYOND.set(beyond)
        if beyond:
            _log.error("more adapters are revoked than the engine can refuse", limit=limit, beyond=beyond)
        await self._control.set_revoked(sorted(applied))
        self._acknowledged = applied

    def _start_removals(self) -> None:
        for name, revocation in self._revoked.items():
            if name not in self._receipts and name not in self._removing:
                task = asyncio.create_task(self._remove(revocation))
                self._removing[name] = task
                task.add_done_callback(partial(self._on_removal_end, name))

    def _on_removal_end(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._removing[name]
        if task.cancelled():
            self._acknowledged = None  # an unload that reaches the engine late makes it refuse the adapter again

    async def _remove(self, revocation: Revocation) -> None:
        """Repeat attempts with growing pauses until the adapter is removed."""
        began, pause_s = time.monotonic(), _RETRY_FIRST_S
        unloaded: list[Unloaded] = []
        while True:
            receipt, result = None, "failed"
            try:
                async with self._unload_slots:
                    receipt = await self._remove_once(revocation, unloaded)
                result = "left" if receipt is None else "removed"
            except Exception as error:  # noqa: BLE001 - the adapter must be removed whatever the error is
                _log.warning("unload of a revoked adapter failed", revocation=revocation.id, error=repr(error))
            metrics.REVOCATIONS.labels(result).inc()
            if receipt is not None:
                metrics.REVOCATION_SECONDS.observe(time.monotonic() - began)
                _log.info("revoked adapter removed", revocation=revocation.id, adapter=revocation.adapter_id)
                self._receipts[revocation.id] = receipt
                self._unsent_receipts.add(revocation.id)
                with contextlib.suppress(RedisError, OSError):  # the next run sends it
                    await self._send_receipts()
                return
            await asyncio.sleep(pause_s)
            pause_s = min(self._settings.revocation_retry_max_s, 2 * pause_s)

    async def _remove_once(self, revocation: Revocation, unloaded: list[Unloaded]) -> RevocationReceipt | None:
        """Unload every revision, then take the engine's inventory. None when copies are left. The result of each unload
        is added to ``unloaded``, so that the receipt counts the requests of all attempts. Files stay on disk when
        another adapter that may be served leases them: the same weights under another name belong to that adapter.
        """
        with contextlib.suppress(RedisError, OSError):  # a progress report, not the receipt
            await self._send(self._receipt(revocation, "draining", [], RemainingCopies()))
        foreign = set()
        for name in revocation.engine_names:
            result = await self._unload(name)
            unloaded.append(result)
            if any(not self.is_revoked(holder) for holder in result.holders):
                foreign.add(digest_of(name))
        left = remaining_copies(revocation, await self._control.inventory())
        if left.in_slots or left.in_memory or set(left.on_disk) - foreign:
            _log.warning("copies of a revoked adapter remain", revocation=revocation.id, left=repr(left))
            return None
        return self._receipt(revocation, "removed", unloaded, left)

    async def _unload(self, name: str) -> Unloaded:
        drain_s = self._settings.revocation_drain_timeout_s
        timeout_s = drain_s + self._settings.unload_abort_timeout_s + self._settings.engine_control_timeout_s
        return await self._control.unload(name, drain_s=drain_s, timeout_s=timeout_s)

    def _receipt(
        self,
        revocation: Revocation,
        state: Literal["draining", "removed"],
        unloaded: list[Unloaded],
        left: "RemainingCopies",
    ) -> RevocationReceipt:
        return RevocationReceipt(
            revocation_id=revocation.id,
            replica_id=self._settings.replica_id,
            boot_id=self._boot_id,
            state=state,
            drained_requests=sum(each.drained for each in unloaded),
            aborted_requests=sum(each.aborted for each in unloaded),
            in_slots=left.in_slots,
            in_memory=left.in_memory,
            on_disk=left.on_disk,
            at_ms=now_ms(),
        )

    async def _send_receipts(self) -> None:
        for name in list(self._unsent_receipts):
            if receipt := self._receipts.get(name):
                await self._send(receipt)
            self._unsent_receipts.discard(name)

    async def _send(self, receipt: RevocationReceipt) -> None:
        if self._engine_state.fenced:  # the receipts under this id are the other agent's
            return
        key = redis_keys.revocation_receipts(receipt.revocation_id)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, receipt.replica_id, msgspec.json.encode(receipt).decode())
            pipe.expire(key, self._settings.revocation_receipt_ttl_s)
            await pipe.execute()


@dataclass(frozen=True, slots=True)
class RemainingCopies:
    """Copies of a revoked adapter that the engine still has."""

    in_slots: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    on_disk: tuple[str, ...] = ()


def remaining_copies(revocation: Revocation, inventory: EngineInventory) -> RemainingCopies:
    """The copies of a revoked adapter in the engine's own inventory. A slot without an adapter that is not zero counts
    too, because nothing shows whose weights it holds.
    """
    names = set(revocation.engine_names)
    digests = {digest_of(name) for name in names}
    stray = {f"slot {slot.index}" for slot in inventory.slots if slot.name is None and not slot.zeroed}
    nameless = {f"adapter {each.lora_int_id}" for each in inventory.memory if each.name is None}
    return RemainingCopies(
        in_slots=tuple(sorted({slot.name for slot in inventory.slots if slot.name in names} | stray)),
        in_memory=tuple(sorted(names & inventory.in_memory) + sorted(nameless)),
        on_disk=tuple(sorted(digests & set(inventory.disk))),
    )
