"""A request's assignment to one replica: the occupancy that counts there, and what the fair queue charged its tenant.
Assignments are local to this process; admission asks Redis afterwards.
"""

from dataclasses import dataclass

from data_plane.gateway.admission.fair_queue import QueueAccount
from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, PlacementQuery, pages_max
from data_plane.gateway.scheduling.replica_load import Occupancy, Shares


@dataclass(slots=True, eq=False)
class Assignment:
    """A replica that seems to have room for a request: with it, up to ``pages_max`` may be held there. ``account`` is
    the tenant's account in the fair queue, and ``charged`` what it was charged at ``rate``.
    """

    candidate: Candidate
    occupancy: Occupancy
    pages_max: int
    account: QueueAccount | None = None
    rate: float = 1.0
    charged: int = 0

    def charge(self, account: QueueAccount, served: int) -> None:
        """Charge the request's turn to this account; until it ends, its ceiling is charged."""
        self.account, self.rate = account, account.rate
        self.correct(served)

    def correct(self, served: int) -> None:
        """Charge what was served in the end instead of the ceiling."""
        if self.account is not None:
            self.account.charge(served - self.charged, self.rate)
            self.charged = served

    def cancel(self) -> None:
        """Undo the assignment: the request was not admitted with it."""
        self.occupancy.leave()
        self.correct(0)

    def moved_from(self, other: "Assignment") -> None:
        """Take over the request, and its tenant's charge, from another replica's assignment."""
        other.occupancy.give_back()
        self.account, self.rate, self.charged = other.account, other.rate, other.charged


def assign(candidate: Candidate, query: PlacementQuery, shares: Shares, costs: PlacementCosts) -> Assignment:
    """Count a request on a replica from now on."""
    request = query.request
    most = pages_max(candidate, query, costs)  # before the occupancy counts: the tenant's headroom is without it
    occupancy = Occupancy(
        candidate.load,
        shares,
        tenant_id=request.share_id,
        weight=request.limits.weight,
        tier=request.tier,
        pages=request.pages(candidate.status.block_tokens),
        prompt_tokens=request.input_tokens if request.call.stream else 0,  # only a stream shows when prefill ends
        adapter=request.adapter,
    )
    return Assignment(candidate, occupancy, most)
