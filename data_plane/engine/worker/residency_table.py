"""The worker's residency table: vLLM's slots and host memory, the adapters that are in use, pinned or revoked, those
staged for the next step, and the cost of each load. The steps, the loader and the table's writer share it.

Weights are opaque here. Nothing here touches vLLM, the disk or a socket.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Generic, Literal, TypeVar

from core.adapter_names import adapter_of
from core.clock import now_ms
from data_plane.engine.residency import LOADS_MAX, EngineResidency, LoadKind, LoadRecord

Weights = TypeVar("Weights")
ResidentTier = Literal["slot", "memory"]

FAILED_MAX: Final = 64  # the newest failures; more at once means that the disk is lost


def choose_victim(
    oldest_first: Iterable[str],
    *,
    used_now: AbstractSet[str],
    acquired: AbstractSet[str],
    pinned: AbstractSet[str],
    must: bool,
) -> str | None:
    """The adapter that is evicted from host memory next, or None when no adapter may be evicted.

    When a step ``must`` have room, a pinned adapter is evicted if all others are in use, and an adapter of waiting
    requests if all are pinned or in use. The middleware passes on at most as many adapters as host memory
    holds, so the last case is a request that bypassed it.
    """
    candidates = [name for name in oldest_first if name not in used_now]
    for spared in (acquired | pinned, acquired, frozenset[str]()) if must else (acquired | pinned,):
        for name in candidates:
            if name not in spared:
                return name
    return None


class ResidencyTable(Generic[Weights]):
    """Thread-safe: every method holds the lock only for a few dictionary operations."""

    def __init__(self, *, slots: int) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._started_at_ms = now_ms()
        self._version = 0
        self._sequence = 0
        self._slots: tuple[str | None, ...] = (None,) * slots
        self._memory: dict[str, None] = {}
        self._staged: dict[str, Weights] = {}
        self._acquired: set[str] = set()
        self._pinned: frozenset[str] = frozenset()
        self._revoked: frozenset[str] = frozenset()
        self._failed: dict[str, None] = {}
        self._slot_evictions = self._memory_evictions = 0
        self._step_stall_us = 0
        self._loads: deque[LoadRecord] = deque(maxlen=LOADS_MAX)

    def acquire(self, name: str) -> ResidentTier | None:
        """Protect an adapter from eviction until ``release``. Returns its tier, None when it is in neither."""
        with self._lock:
            self._acquired.add(name)
            return self._tier_of(name)

    def replace_acquired(self, names: Iterable[str]) -> None:
        """Replace the set of acquired adapters: the middleware sends it after its connection was interrupted."""
        with self._changed:
            self._acquired = set(names)
            for name in [each for each in self._staged if each not in self._acquired | self._pinned]:
                del self._staged[name]
            self._record_change()

    def release(self, name: str) -> None:
        """End the protection by ``acquire``. Staged weights stay for one more step: the engine learns of a request's
        end later than this call, and would otherwise read from disk for a request that it still runs.
        """
        with self._lock:
            self._acquired.discard(name)

    def evict_unwanted(self, used_now: AbstractSet[str]) -> None:
        """Drop staged weights that are neither acquired nor pinned and that the ending step did not use."""
        with self._changed:
            for name in [each for each in self._staged if each not in used_now and not self._is_protected(each)]:
                del self._staged[name]
                self._record_change()

    def pin(self, names: Iterable[str]) -> list[str]:
        """Replace the set of adapters to keep in host memory. Returns those that are not there yet."""
        with self._changed:
            self._pinned = frozenset(names)
            self._record_change()
            return sorted(name for name in self._pinned if self._tier_of(name) is None)

    def set_revoked(self, adapters: Iterable[str]) -> None:
        """Replace the set of revoked adapter ids: no revision of them may be loaded."""
        with self._lock:
            self._revoked = frozenset(adapters)

    def is_revoked(self, name: str) -> bool:
        """Whether this adapter must not be loaded."""
        with self._lock:
            return adapter_of(name) in self._revoked

    def wants(self, name: str) -> bool:
        """Whether ``stage`` would accept weights of this name now."""
        with self._lock:
            return self._wants(name)

    def stage(self, name: str, weights: Weights) -> bool:
        """Stage weights for the next step that needs them. False when no request or pin needs them any longer."""
        with self._changed:
            wanted = self._wants(name)
            if wanted:
                for other in [each for each in self._staged if not self._is_protected(each)]:
                    del self._staged[other]  # no step ran since their release: make room for weights that are needed
                self._staged[name] = weights
            self._record_change()
            return wanted

    def take_staged(self, name: str) -> Weights | None:
        """Return the staged weights and unstage them: the caller registers them."""
        with self._changed:
            weights = self._staged.pop(name, None)
            if weights is not None:
                self._record_change()
            return weights

    def evict(self, name: str) -> None:
        """Drop the staged weights and the failure mark of an adapter."""
        with self._changed:
            self._staged.pop(name, None)
            self._failed.pop(name, None)
            self._record_change()

    def record_failure(self, name: str) -> None:
        """A step could not load the adapter: its slot is empty, and the generated tokens belong to no adapter."""
        with self._changed:
            self._failed.pop(name, None)
            self._failed[name] = None
            while len(self._failed) > FAILED_MAX:
                del self._failed[next(iter(self._failed))]
            self._record_change()

    def has_failed(self, name: str) -> bool:
        """Whether the adapter has failed since its last ``evict``."""
        with self._lock:
            return name in self._failed

    def record_load(self, name: str, kind: LoadKind, ms: float, *, in_step: bool) -> None:
        """Record one load and its duration."""
        with self._changed:
            self._sequence += 1
            self._step_stall_us += round(ms * 1000) if in_step else 0
            self._loads.append(
                LoadRecord(seq=self._sequence, name=name, kind=kind, ms=round(ms, 3), in_step=in_step, at_ms=now_ms())
            )
            self._record_change()

    def record_tables(
        self,
        *,
        slots: tuple[str | None, ...],
        memory: Iterable[str] | None = None,
        used: str | None = None,
        slot_evictions: int = 0,
        memory_evictions: int = 0,
    ) -> None:
        """Record vLLM's own tables after a change, and how many adapters were evicted. Without ``memory`` host memory
        is unchanged, except that ``used`` becomes the most recently used: a step that swaps a slot does not have to
        list a thousand names.
        """
        with self._changed:
            self._slots = slots
            if memory is not None:
                self._memory = dict.fromkeys(memory)
            elif used in self._memory:
                del self._memory[used]
                self._memory[used] = None
            self._slot_evictions += slot_evictions
            self._memory_evictions += memory_evictions
            self._record_change()

    def victim(self, oldest_first: Iterable[str], used_now: AbstractSet[str], *, must: bool) -> str | None:
        """``choose_victim`` with the adapters that are acquired and pinned now."""
        with self._lock:
            return choose_victim(
                oldest_first, used_now=used_now, acquired=self._acquired, pinned=self._pinned, must=must
            )

    @property
    def staged_count(self) -> int:
        """Number of staged adapters. Read without the lock, since every step reads it."""
        return len(self._staged)

    def staged(self) -> tuple[str, ...]:
        """Names of the staged adapters, the oldest first."""
        with self._lock:
            return tuple(self._staged)

    @property
    def version(self) -> int:
        """Grows with each change."""
        with self._lock:
            return self._version

    def snapshot(self) -> EngineResidency:
        """The whole table, as it is published."""
        with self._lock:
            return EngineResidency(
                started_at_ms=self._started_at_ms,
                version=self._version,
                slots=self._slots,
                memory=tuple(self._memory),
                staged=tuple(self._staged),
                pinned=tuple(sorted(self._pinned)),
                failed=tuple(self._failed),
                slot_evictions=self._slot_evictions,
                memory_evictions=self._memory_evictions,
                loads=tuple(self._loads),
                step_stall_ms=self._step_stall_us // 1000,
            )

    def wait_for_change(self, seen_version: int, timeout_s: float) -> bool:
        """Block until the table is newer than ``seen_version``. False when that takes longer than ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._version == seen_version:
                if (left := deadline - time.monotonic()) <= 0:
                    return False
                self._changed.wait(left)
            return True

    def _wants(self, name: str) -> bool:
        return adapter_of(name) not in self._revoked and self._is_protected(name)

    def _is_protected(self, name: str) -> bool:
        return name in self._acquired or name in self._pinned

    def _tier_of(self, name: str) -> ResidentTier | None:
        if name in self._failed:
            return None
        if name in self._slots:
            return "slot"
        return "memory" if name in self._staged or name in self._memory else None

    def _record_change(self) -> None:
        self._version += 1
        self._changed.notify_all()
