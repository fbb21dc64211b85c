"""What the worker knows of its tiers beside vLLM's own tables: which adapters are in use, pinned or refused, which lie
staged for the next step, and what each load cost. It is shared by the steps, the loader and the table's writer.

Weights are opaque here, and nothing here touches vLLM, the disk or a socket.
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
Held = Literal["slot", "memory"]

FAILED_MAX: Final = 64  # the newest; more than that at once means that the disk is gone


def choose_victim(
    oldest_first: Iterable[str],
    *,
    used_now: AbstractSet[str],
    held: AbstractSet[str],
    pinned: AbstractSet[str],
    must: bool,
) -> str | None:
    """The adapter that leaves host memory next, or None when there is none that may.

    When a step ``must`` have room, a pinned one goes if all others are in use, and one that waiting requests use if all
    are: the door lets in no more than host memory holds, so that this last case is a request which came around it.
    """
    candidates = [name for name in oldest_first if name not in used_now]
    for spared in (held | pinned, held, frozenset[str]()) if must else (held | pinned,):
        for name in candidates:
            if name not in spared:
                return name
    return None


class ResidencyTable(Generic[Weights]):
    """Thread-safe: every method takes the lock for a few dictionary operations and no longer."""

    def __init__(self, *, slots: int) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._started_at_ms = now_ms()
        self._version = 0
        self._sequence = 0
        self._slots: tuple[str | None, ...] = (None,) * slots
        self._memory: dict[str, None] = {}
        self._staged: dict[str, Weights] = {}
        self._held: set[str] = set()
        self._pinned: frozenset[str] = frozenset()
        self._refused: frozenset[str] = frozenset()
        self._failed: dict[str, None] = {}
        self._slot_evictions = self._memory_evictions = 0
        self._loads: deque[LoadRecord] = deque(maxlen=LOADS_MAX)

    def hold(self, name: str) -> Held | None:
        """Keep an adapter where it is from now on, until ``release``; tells where that is, None for nowhere."""
        with self._lock:
            self._held.add(name)
            return self._where(name)

    def hold_only(self, names: Iterable[str]) -> None:
        """Replace the set of holds: a door that was cut off says what it holds still."""
        with self._changed:
            self._held = set(names)
            for name in [each for each in self._staged if each not in self._held | self._pinned]:
                del self._staged[name]
            self._note_change()

    def release(self, name: str) -> None:
        """No request uses it any more. What no step has taken stays for a step yet: the engine hears of a request's end
        later than this, and would read from the disk for one that it still has.
        """
        with self._lock:
            self._held.discard(name)

    def drop_unwanted(self, used_now: AbstractSet[str]) -> None:
        """Let go of what is staged for nobody, and was not used in the step that ends."""
        with self._changed:
            for name in [each for each in self._staged if each not in used_now and not self._is_kept(each)]:
                del self._staged[name]
                self._note_change()

    def pin(self, names: Iterable[str]) -> list[str]:
        """Replace the set kept in host memory; returns those that are not there yet."""
        with self._changed:
            self._pinned = frozenset(names)
            self._note_change()
            return sorted(name for name in self._pinned if self._where(name) is None)

    def refuse(self, adapters: Iterable[str]) -> None:
        """Replace the set of adapter ids whose revisions must not be loaded."""
        with self._lock:
            self._refused = frozenset(adapters)

    def is_refused(self, name: str) -> bool:
        """Whether it must not be loaded."""
        with self._lock:
            return adapter_of(name) in self._refused

    def wants(self, name: str) -> bool:
        """Whether weights of this name would be staged now."""
        with self._lock:
            return self._wants(name)

    def stage(self, name: str, weights: Weights) -> bool:
        """Offer weights to the next step that asks for them. False when nobody wants them any more."""
        with self._changed:
            wanted = self._wants(name)
            if wanted:
                for other in [each for each in self._staged if not self._is_kept(each)]:
                    del self._staged[other]  # no step has come by: room for one that is wanted
                self._staged[name] = weights
            self._note_change()
            return wanted

    def take(self, name: str) -> Weights | None:
        """The staged weights, once: whoever takes them registers them."""
        with self._changed:
            weights = self._staged.pop(name, None)
            if weights is not None:
                self._note_change()
            return weights

    def forget(self, name: str) -> None:
        """Drop what is staged, and that it has failed."""
        with self._changed:
            self._staged.pop(name, None)
            self._failed.pop(name, None)
            self._note_change()

    def fail(self, name: str) -> None:
        """A step could not load it: its slot is empty, and what comes out is nobody's."""
        with self._changed:
            self._failed.pop(name, None)
            self._failed[name] = None
            while len(self._failed) > FAILED_MAX:
                del self._failed[next(iter(self._failed))]
            self._note_change()

    def has_failed(self, name: str) -> bool:
        """Whether ``fail`` was the last word on it."""
        with self._lock:
            return name in self._failed

    def record(self, name: str, kind: LoadKind, ms: float, *, in_step: bool) -> None:
        """Note one load and its duration."""
        with self._changed:
            self._sequence += 1
            self._loads.append(
                LoadRecord(seq=self._sequence, name=name, kind=kind, ms=round(ms, 3), in_step=in_step, at_ms=now_ms())
            )
            self._note_change()

    def now_holds(
        self,
        *,
        slots: tuple[str | None, ...],
        memory: Iterable[str] | None = None,
        used: str | None = None,
        slot_evictions: int = 0,
        memory_evictions: int = 0,
    ) -> None:
        """Take over vLLM's own tables after they have changed, and how many adapters left them. Without ``memory`` it
        is as it was but for ``used``, which comes last: a step that swaps a slot need not list a thousand names.
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
            self._note_change()

    def victim(self, oldest_first: Iterable[str], used_now: AbstractSet[str], *, must: bool) -> str | None:
        """``choose_victim`` with what is held and pinned now."""
        with self._lock:
            return choose_victim(oldest_first, used_now=used_now, held=self._held, pinned=self._pinned, must=must)

    @property
    def staged_count(self) -> int:
        """Adapters that wait for a step; read without the lock, since steps ask each time."""
        return len(self._staged)

    def staged(self) -> tuple[str, ...]:
        """Their names, the oldest first."""
        with self._lock:
            return tuple(self._staged)

    @property
    def version(self) -> int:
        """Grows with every change."""
        with self._lock:
            return self._version

    def snapshot(self) -> EngineResidency:
        """All of it, as the published table."""
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
            )

    def wait_for_change(self, seen_version: int, timeout_s: float) -> bool:
        """Block until the table is newer than ``seen_version``; False when it is not within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._version == seen_version:
                if (left := deadline - time.monotonic()) <= 0:
                    return False
                self._changed.wait(left)
            return True

    def _wants(self, name: str) -> bool:
        return adapter_of(name) not in self._refused and self._is_kept(name)

    def _is_kept(self, name: str) -> bool:
        return name in self._held or name in self._pinned

    def _where(self, name: str) -> Held | None:
        if name in self._failed:
            return None
        if name in self._slots:
            return "slot"
        return "memory" if name in self._staged or name in self._memory else None

    def _note_change(self) -> None:
        self._version += 1
        self._changed.notify_all()
