"""Which replica should serve a request: a pure function over what the replicas say of themselves."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from core.contracts import ReplicaStatus, Residency, Tier
from core.engine_names import digest_of

_TIERS: Final[tuple[Tier, ...]] = ("slot", "memory", "disk", "store")


@dataclass(frozen=True, slots=True)
class Resident:
    """Where adapters lie on one replica: engine names in slots and in host memory, digests on its disk."""

    slots: frozenset[str] = frozenset()
    memory: frozenset[str] = frozenset()
    disk: frozenset[str] = frozenset()

    @classmethod
    def of(cls, residency: Residency) -> "Resident":
        """A replica's published residency, as placement looks it up."""
        return cls(
            frozenset(name for name in residency.slots if name is not None),
            frozenset(residency.memory),
            frozenset(residency.disk),
        )

    def tier(self, engine_name: str) -> Tier:
        """The fastest tier that has this adapter."""
        if engine_name in self.slots:
            return "slot"
        if engine_name in self.memory:
            return "memory"
        return "disk" if digest_of(engine_name) in self.disk else "store"


NOTHING_RESIDENT: Final = Resident()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica. ``free_pages`` is the lesser of what its engine reports and what reservations leave."""

    status: ReplicaStatus
    free_pages: int
    resident: Resident = NOTHING_RESIDENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a request needs of a replica. A base model's ``engine_name`` is its id, and its ``rank`` 0."""

    base_model: str
    engine_name: str
    rank: int = 0

    @property
    def is_adapter(self) -> bool:
        return self.engine_name != self.base_model


def choose(
    candidates: Iterable[Candidate], wish: Wish, *, pages: int, tried: frozenset[str] = frozenset()
) -> list[ReplicaStatus]:
    """Replicas that could serve ``pages`` of what is wished, best first.

    Only those whose pool takes adapters of this rank. Of them first those that seem to have room; then the cheapest
    rank class, since a larger one pays for its rank with KV pages; then the fastest tier that has the adapter (a base
    model is everywhere); then more free pages, and fewer waiting requests.
    """
    able = [
        candidate
        for candidate in candidates
        if candidate.status.state == "ready"
        and candidate.status.base_model == wish.base_model
        and candidate.status.rank_max >= wish.rank
        and candidate.status.pages_total >= pages
        and candidate.status.id not in tried
    ]
    able.sort(
        key=lambda candidate: (
            candidate.free_pages < pages,
            candidate.status.rank_max if wish.is_adapter else 0,
            _TIERS.index(candidate.resident.tier(wish.engine_name)) if wish.is_adapter else 0,
            -candidate.free_pages,
            candidate.status.waiting_requests,
            candidate.status.id,
        )
    )
    return [candidate.status for candidate in able]
