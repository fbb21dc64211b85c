"""What a replica does about revoked adapters: refuse them, end and unload them in every tier, and say so.

Fails closed. What was once read as revoked stays refused while Redis is away, a replica that starts waits until it
knows what is revoked, and a receipt is written only after the engine itself was asked and has nothing left.
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
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.adapter_names import adapter_of, digest_of
from core.clock import now_ms
from core.contracts.revocations import Revocation, RevocationReceipt
from data_plane.engine.agent import metrics
from data_plane.engine.agent.control_client import ControlClient
from data_plane.engine.agent.snapshot_reader import SnapshotReader
from data_plane.engine.control_protocol import EngineInventory, Unloaded
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_RETRY_FIRST_S: Final = 0.5


class Revocations:
    """The revoked adapters of one base model, on one engine. ``step`` is repeated; ``close`` ends what is running."""

    def __init__(self, settings: ReplicaSettings, redis: Redis, door: ControlClient, boot_id: str) -> None:
        self._settings = settings
        self._redis = redis
        self._door = door
        self._boot_id = boot_id
        self._published = SnapshotReader(redis, "revocations", Revocation)
        self._epoch = ""
        self._revoked: dict[str, Revocation] = {}
        self._adapters: frozenset[str] = frozenset()  # those that are revoked
        self._acknowledged: frozenset[str] | None = frozenset()  # what the door refuses; None for unknown
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._receipts: dict[str, RevocationReceipt] = {}  # of what is gone
        self._untold: set[str] = set()
        self._turns = asyncio.Semaphore(settings.revocation_unloads_max)

    def refuses(self, name: str) -> bool:
        """Whether this engine name must not be served, loaded or prefetched."""
        return adapter_of(name) in self._adapters

    async def step(self) -> None:
        """Learn what is revoked, have the door refuse it, and see to its removal. Raises SnapshotMissing,
        redis.RedisError, or what the door raises.
        """
        try:
            await self._learn()
        finally:  # what is known is enforced also while Redis is away
            await self._refuse()
            self._begin_removals()
        await self._tell_untold()

    async def honour_at_start(self) -> None:
        """One step, and a bounded wait for what it began: nobody uses the engine yet, so only its disk has anything."""
        await self.step()
        if self._removing:
            await asyncio.wait(self._removing.values(), timeout=self._settings.revocation_start_timeout_s)

    async def close(self) -> None:
        """Stop removing; what is not gone has no receipt and is taken up by the next engine."""
        for task in list(self._removing.values()):
            task.cancel()
        await asyncio.gather(*self._removing.values(), return_exceptions=True)

    async def _learn(self) -> None:
        published = await self._published.changed()
        if published is None:
            return
        base_model = self._settings.base_model
        self._revoked = {field: each for field, each in published.items() if each.base_model == base_model}
        self._adapters = frozenset(each.adapter_id for each in self._revoked.values())
        if self._published.epoch != self._epoch:  # Redis may have lost receipts too
            self._epoch = self._published.epoch
            self._untold |= self._receipts.keys()
        for lifted in (self._receipts.keys() | self._removing.keys()) - self._revoked.keys():
            self._receipts.pop(lifted, None)
            self._untold.discard(lifted)
            if task := self._removing.get(lifted):
                task.cancel()

    async def _refuse(self) -> None:
        """Tell the door what differs. Of more than it takes, those revoked last: the others left every tier long ago,
        and no gateway has a route to them.
        """
        most = self._settings.revoked_adapters_max
        newest = sorted(self._revoked.values(), key=lambda each: each.id, reverse=True)
        told = frozenset(islice(dict.fromkeys(each.adapter_id for each in newest), most))
        if told == self._acknowledged:
            return
        beyond = len(self._adapters) - len(told)
        metrics.REVOKED.set(len(told))
        metrics.REVOKED_BEYOND.set(beyond)
        if beyond:
            _log.error("more adapters are revoked than the engine can refuse", most=most, beyond=beyond)
        await self._door.refuse(sorted(told))
        self._acknowledged = told

    def _begin_removals(self) -> None:
        for name, revocation in self._revoked.items():
            if name not in self._receipts and name not in self._removing:
                task = asyncio.create_task(self._remove(revocation))
                self._removing[name] = task
                task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._removing[name]
        if task.cancelled():
            self._acknowledged = None  # an unload that reaches the door late refuses its adapter again

    async def _remove(self, revocation: Revocation) -> None:
        """Until it is gone: one attempt after the other, with growing pauses."""
        began, pause_s = time.monotonic(), _RETRY_FIRST_S
        unloaded: list[Unloaded] = []
        while True:
            receipt, result = None, "failed"
            try:
                async with self._turns:
                    receipt = await self._remove_once(revocation, unloaded)
                result = "left" if receipt is None else "removed"
            except Exception as error:  # noqa: BLE001 - whatever it was, the adapter must go
                _log.warning("revoked adapter could not be unloaded", revocation=revocation.id, error=repr(error))
            metrics.REVOCATIONS.labels(result).inc()
            if receipt is not None:
                metrics.REVOCATION_SECONDS.observe(time.monotonic() - began)
                _log.info("revoked adapter is gone", revocation=revocation.id, adapter=revocation.adapter_id)
                self._receipts[revocation.id] = receipt
                self._untold.add(revocation.id)
                with contextlib.suppress(RedisError, OSError):  # the next step tells it
                    await self._tell_untold()
                return
            await asyncio.sleep(pause_s)
            pause_s = min(self._settings.revocation_retry_max_s, 2 * pause_s)

    async def _remove_once(self, revocation: Revocation, unloaded: list[Unloaded]) -> RevocationReceipt | None:
        """Unload every revision, then ask the engine. None where something is left of it. What each unloading said is
        added to ``unloaded``, so that the receipt counts the requests of all attempts. Files that somebody else holds
        who may be served stay: the same weights under another name are that one's own.
        """
        with contextlib.suppress(RedisError, OSError):  # a word on the way, not the receipt
            await self._tell(self._receipt(revocation, "draining", [], RemainingCopies()))
        foreign = set()
        for name in revocation.engine_names:
            said = await self._unload(name)
            unloaded.append(said)
            if any(not self.refuses(holder) for holder in said.holders):
                foreign.add(digest_of(name))
        left = left_of(revocation, await self._door.residency())
        if left.in_slots or left.in_memory or set(left.on_disk) - foreign:
            _log.warning("revoked adapter is still there", revocation=revocation.id, left=repr(left))
            return None
        return self._receipt(revocation, "removed", unloaded, left)

    async def _unload(self, name: str) -> Unloaded:
        drain_s = self._settings.revocation_drain_timeout_s
        timeout_s = drain_s + self._settings.unload_abort_timeout_s + self._settings.engine_control_timeout_s
        return await self._door.unload(name, drain_s=drain_s, timeout_s=timeout_s)

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

    async def _tell_untold(self) -> None:
        for name in list(self._untold):
            if receipt := self._receipts.get(name):
                await self._tell(receipt)
            self._untold.discard(name)

    async def _tell(self, receipt: RevocationReceipt) -> None:
        key = redis_keys.revocation_receipts(receipt.revocation_id)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, receipt.replica_id, msgspec.json.encode(receipt).decode())
            pipe.expire(key, self._settings.revocation_receipt_ttl_s)
            await pipe.execute()


@dataclass(frozen=True, slots=True)
class RemainingCopies:
    """What the engine still has of a revoked adapter."""

    in_slots: tuple[str, ...] = ()
    in_memory: tuple[str, ...] = ()
    on_disk: tuple[str, ...] = ()


def left_of(revocation: Revocation, truth: EngineInventory) -> RemainingCopies:
    """What is left of it by the engine's own account. A slot that belongs to nobody and is not zero counts: whose
    weights those are cannot be told.
    """
    names = set(revocation.engine_names)
    digests = {digest_of(name) for name in names}
    stray = {f"slot {slot.index}" for slot in truth.slots if slot.name is None and not slot.zeroed}
    nameless = {f"adapter {each.lora_int_id}" for each in truth.memory if each.name is None}
    return RemainingCopies(
        in_slots=tuple(sorted({slot.name for slot in truth.slots if slot.name in names} | stray)),
        in_memory=tuple(sorted(names & truth.in_memory) + sorted(nameless)),
        on_disk=tuple(sorted(digests & set(truth.disk))),
    )
