"""Simulated replicas: slots, host memory, disk, pages and a step that all running requests share. Costs are modeled and
there are no weights. The placement rule is passed in from ``benchmarks.placement.__main__``.

Loading an adapter into a slot stalls all running requests of the replica for that time. A request whose adapter finds
every slot in use waits on the replica, as in vLLM's scheduler.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.trace import Arrival
from core.contracts.replicas import ReplicaStatus
from core.kv_pages import pages_for
from data_plane.gateway.scheduling.placement import Candidate, Resident
from data_plane.gateway.scheduling.replica_load import Occupancy, ReplicaLoad, Shares
from data_plane.gateway.scheduling.shortlist import CandidatePool


@dataclass(frozen=True, kw_only=True)
class Model:
    """A replica's capacity, and its costs in seconds. A step's time grows with the number of requests in it."""

    slots: int = 8
    memory: int = 32
    disk: int = 256
    pages: int = 4096
    store_s: float = 0.6
    disk_s: float = 0.05
    slot_s: float = 0.035
    prompt_token_s: float = 0.00005
    step_s: float = 0.012
    step_per_request_s: float = 0.0001
    seen_every_s: float = 0.25


class Request:
    """One arrival and its progress through the simulation."""

    def __init__(self, number: int, arrival: Arrival) -> None:
        self.number = number
        self.at_s = arrival.at_s
        self.name = f"ad_{arrival.adapter}@{arrival.adapter:064x}"
        self.prompt_tokens, self.output_tokens = arrival.prompt_tokens, arrival.output_tokens
        self.tokens = arrival.prompt_tokens + arrival.output_tokens
        self.pages = pages_for(self.tokens)
        self.placed_s = self.first_token_s = 0.0
        self.stalls_seen_s = 0.0
        self.tier = ""
        self.stay: Occupancy | None = None


class SimReplica:
    """One replica. ``candidate`` is its state as a gateway knows it; the fleet refreshes it periodically."""

    def __init__(self, number: int, model: Model) -> None:
        self.number, self.model = number, model
        self.load = ReplicaLoad()
        self.slots: OrderedDict[str, int] = OrderedDict()  # adapters in LRU order, with their running requests
        self.memory: OrderedDict[str, None] = OrderedDict()
        self.disk: OrderedDict[str, None] = OrderedDict()
        self.ready_s: dict[str, float] = {}  # when an adapter that is being fetched will be in memory
        self.queue: deque[Request] = deque()
        self.running = 0
        self.swaps = 0
        self.stalled_s = 0.0
        self.served = 0

    @property
    def taken_pages(self) -> int:
        return self.load.taken_pages

    def see(self) -> None:
        """Publish where adapters are resident, and the load."""
        status = ReplicaStatus(
            id=f"rep_{self.number:05}", url="", base_model="m", state="ready", boot_id="b", block_tokens=16,
            pages_total=self.model.pages, pages_free=self.model.pages - self.load.held_pages, slots=self.model.slots,
            running_requests=self.running, waiting_requests=len(self.queue), heartbeat_ms=0,
        )  # fmt: skip
        digests = frozenset(name.partition("@")[2] for name in self.disk)
        self.candidate = Candidate(status, self.load, Resident(frozenset(self.slots), frozenset(self.memory), digests))

    def tier(self, name: str) -> str:
        if name in self.slots:
            return "slot"
        if name in self.memory:
            return "memory"
        return "disk" if name in self.disk else "store"

    def fetch_s(self, name: str, now: float) -> float:
        """The time at which an adapter is in memory: now, or after fetching it from its tier."""
        tier, model = self.tier(name), self.model
        if tier in ("slot", "memory"):
            return max(now, self.ready_s.get(name, 0.0))
        self.ready_s[name] = now + model.disk_s + (model.store_s if tier == "store" else 0.0)
        for place, most in ((self.disk, model.disk), (self.memory, model.memory)):
            place[name] = None
            place.move_to_end(name)
            if len(place) > most:
                place.popitem(last=False)
        return self.ready_s[name]

    def take_slot(self, name: str) -> float | None:
        """Take a slot; returns the stall of all running requests in seconds, or None when every slot is in use."""
        if name in self.slots:
            self.slots.move_to_end(name)
            self.slots[name] += 1
            return 0.0
        if len(self.slots) >= self.model.slots:
            idle = next((held for held, users in self.slots.items() if not users), None)
            if idle is None:
                return None
            del self.slots[idle]
        self.slots[name] = 1
        self.swaps += 1
        self.stalled_s += self.model.slot_s
        return self.model.slot_s

    def interval_s(self) -> float:
        return self.model.step_s + self.model.step_per_request_s * self.running


class Fleet:
    """All replicas, the simulated clock, and the requests that wait for room."""

    def __init__(self, replicas: int, model: Model) -> None:
        self.model = model
        self.replicas = [SimReplica(number, model) for number in range(replicas)]
        self.index = CandidatePool()
        self._see()
        self.by_id = {replica.candidate.status.id: replica for replica in self.replicas}
        self.now = 0.0
        self._shares = Shares()
        self._events: list[tuple[float, int, str, Request | None, SimReplica | None]] = []
        self._order = 0
        self._waiting: deque[Request] = deque()
        self._done: list[Request] = []

    def _see(self) -> None:
        for each in self.replicas:
            each.see()
            self.index.put(each.candidate)
        self.index.sort_by_room()

    def candidates(self) -> list[Candidate]:
        """The replicas' states that a gateway's placement reads."""
        return [replica.candidate for replica in self.replicas]

    def with_room(self, request: Request) -> list[SimReplica]:
        """The replicas with enough free pages for the request."""
        return [r for r in self.replicas if r.taken_pages + request.pages <= self.model.pages]

    def busiest_to_mean(self) -> float:
        """Requests served by the busiest replica, divided by the mean."""
        served = [replica.served for replica in self.replicas]
        return max(served) * len(served) / max(1, sum(served))

    def run(self, arrivals: Iterable[Arrival], rule: Callable[["Fleet", Request], SimReplica | None]) -> list[Request]:
        """Serve a whole trace to its last token."""
        for number, arrival in enumerate(arrivals):
            self._at(arrival.at_s, "arrive", Request(number, arrival))
        self._at(0.0, "see")
        while self._events:
            self.now, _, kind, request, replica = heapq.heappop(self._events)
            if kind == "see":
                self._see()
                self._place_waiting(rule)
                if self._events:
                    self._at(self.now + self.model.seen_every_s, "see")
            elif request is not None and replica is None:
                if self._waiting or not self._place(rule, request):
                    self._waiting.append(request)
            elif request is not None and replica is not None:
                if kind == "start":
                    self._start(request, replica)
                elif self._end(request, replica):
                    self._place_waiting(rule)
        return self._done

    def _at(self, at_s: float, kind: str, request: Request | None = None, replica: SimReplica | None = None) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, kind, request, replica))

    def _place_waiting(self, rule: Callable[["Fleet", Request], SimReplica | None]) -> None:
        for _ in range(len(self._waiting)):
            request = self._waiting.popleft()
            if not self._place(rule, request):
                self._waiting.append(request)

    def _place(self, rule: Callable[["Fleet", Request], SimReplica | None], request: Request) -> bool:
        replica = rule(self, request)
        if replica is None:
            return False
        request.placed_s = self.now
        request.tier = replica.tier(request.name)
        request.stay = Occupancy(
            replica.load, self._shares, tenant_id="tn", weight=1, pages=request.pages,
            prompt_tokens=request.prompt_tokens, adapter=request.name,
        )  # fmt: skip
        request.stay.answered(replica.load.held_pages + request.pages, granted_pages=request.pages)
        self._at(replica.fetch_s(request.name, self.now), "start", request, replica)
        return True

    def _start(self, request: Request, replica: SimReplica) -> None:
        """Start a request whose adapter is in memory: take a slot, or queue when all slots are in use."""
        stall_s = replica.take_slot(request.name)
        if stall_s is None:
            replica.queue.append(request)
            return
        replica.running += 1
        prefill_s = request.prompt_tokens * self.model.prompt_token_s + replica.interval_s()
        request.stalls_seen_s = replica.stalled_s
        first_s = self.now + stall_s + prefill_s
        request.first_token_s = first_s - request.at_s
        assert request.stay is not None
        request.stay.prefilled()
        self._at(first_s + request.output_tokens * replica.interval_s(), "end", request, replica)

    def _end(self, request: Request, replica: SimReplica) -> bool:
        """End a request. If adapter loads stalled it since it started, end it that much later and return False."""
        held_up_s = replica.stalled_s - request.stalls_seen_s
        if held_up_s > 0:
            request.stalls_seen_s = replica.stalled_s
            self._at(self.now + held_up_s, "end", request, replica)
            return False
        replica.running -= 1
        replica.served += 1
        replica.slots[request.name] -= 1
        assert request.stay is not None
        request.stay.give_back()
        self.index.free(replica.candidate.status)
        self._done.append(request)
        waiting, replica.queue = replica.queue, deque()
        for other in waiting:
            self._start(other, replica)
        return True
