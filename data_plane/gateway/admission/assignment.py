"""A request's seat on one replica: its stay there, and what its tenant was charged for it in the queue. Redis has not
been asked when it is taken; what Redis says is admission's business.
"""

from dataclasses import dataclass

from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.admission.fair_queue import QueueAccount
from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, Wish, pages_max
from data_plane.gateway.scheduling.replica_load import Occupancy, Shares


@dataclass(slots=True, eq=False)
class Assignment:
    """A replica that seems to have room for a request: as much as ``pages_max`` may be held there with it. And what its
    tenant was charged for it.
    """

    candidate: Candidate
    stay: Occupancy
    pages_max: int
    account: QueueAccount | None = None
    rate: float = 1.0
    charged: int = 0

    def charge(self, account: QueueAccount, served: int) -> None:
        """Its turn in the queue is charged to this account, for now with the ceiling."""
        self.account, self.rate = account, account.rate
        self.correct(served)

    def correct(self, served: int) -> None:
        """Charge what was served in the end instead of the ceiling."""
        if self.account is not None:
            self.account.charge(served - self.charged, self.rate)
            self.charged = served

    def leave(self) -> None:
        """Nothing came of it."""
        self.stay.leave()
        self.correct(0)

    def moved_from(self, other: "Assignment") -> None:
        """The request goes on here, and with it what its tenant was charged."""
        self.stay.moved_from(other.stay)
        self.account, self.rate, self.charged = other.account, other.rate, other.charged


def assign(demand: Demand, candidate: Candidate, shares: Shares, wish: Wish, costs: PlacementCosts) -> Assignment:
    """Count a request on a replica from now on."""
    most = pages_max(candidate, wish, costs)  # before the stay counts: it is about the tenant without it
    stay = Occupancy(
        candidate.load,
        shares,
        tenant_id=demand.tenant_id,
        weight=demand.limits.weight,
        tier=demand.limits.tier,
        pages=wish.pages(candidate.status.block_tokens),
        prompt_tokens=demand.input_tokens if demand.stream else 0,
        adapter=wish.adapter,
    )
    return Assignment(candidate, stay, most)
