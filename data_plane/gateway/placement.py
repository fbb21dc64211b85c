"""Which replica should serve a request: a pure function over what the replicas say of themselves."""

from collections.abc import Iterable
from dataclasses import dataclass

from core.contracts import ReplicaStatus


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live replica. ``free_pages`` is the lesser of what its engine reports and what reservations leave."""

    status: ReplicaStatus
    free_pages: int


def choose(
    candidates: Iterable[Candidate],
    *,
    base_model: str,
    engine_name: str,
    pages: int,
    tried: frozenset[str] = frozenset(),
) -> list[ReplicaStatus]:
    """Replicas that could serve ``pages`` of ``engine_name``, best first: those that seem to have room, of them those
    where the adapter is resident (a base model always is), then more free pages, then fewer waiting requests.
    """
    able = [
        candidate
        for candidate in candidates
        if candidate.status.state == "ready"
        and candidate.status.base_model == base_model
        and candidate.status.pages_total >= pages
        and candidate.status.id not in tried
    ]
    able.sort(
        key=lambda candidate: (
            candidate.free_pages < pages,
            engine_name != base_model and engine_name not in candidate.status.resident,
            -candidate.free_pages,
            candidate.status.waiting_requests,
            candidate.status.id,
        )
    )
    return [candidate.status for candidate in able]
