"""Where requests wait for room on a replica, and how each one's turn comes: when something changed, not by asking Redis
again and again. Whose turn it is, the fair queue decides; where it goes, placement; whether it may, admission.

Fairness is between the tenants of one process. A turn is a guess made on this process's view: Redis has the last word,
and a request that hears no takes its old place again.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import Final

from redis.exceptions import RedisError

from core.errors import Unavailable
from core.kv_pages import PAGE_TOKENS
from data_plane.gateway import metrics
from data_plane.gateway.placing.demand import Demand
from data_plane.gateway.placing.drain_rate import DrainRate
from data_plane.gateway.placing.fair_queue import Bounds, Entry, FairQueue, QueueFull, service
from data_plane.gateway.placing.glance import Glance
from data_plane.gateway.placing.placement import NOWHERE, Candidate, PlacementCosts, Ranking, Wish, rank
from data_plane.gateway.placing.replica_load import Shares
from data_plane.gateway.placing.replicas import Replicas
from data_plane.gateway.placing.seat import Seat, take_seat
from data_plane.gateway.surface.client import ClientGone

_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 60.0
_RETRY_JITTER: Final = 0.25  # so that those who were refused together do not come back together
_SHED_SHARE: Final = 0.8  # of the longest wait: an estimate errs, and who is refused should hear it at once
_OF_TENANT_MAX: Final = 8  # of one tenant's requests looked at in one turn: more may want adapters that have no slot
_PASSED_MAX: Final = 64  # requests that found no room in one turn, after which nobody else is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long requests wait: at most; passed over by others until that ends; and between looks at Redis."""

    wait_s: float
    passed_over_s: float
    poll_s: float


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits. ``passed_at`` is when another first went before it although its turn had come."""

    demand: Demand
    deadline: float
    seat: "asyncio.Future[Seat]"
    arrived: float
    passed_at: float | None = None
    claim: str = ""  # the replica that is kept for it once it is overdue
    gone: bool = False  # its caller has hung up


class _Room:
    """One base model's queue."""

    def __init__(self, bounds: Bounds) -> None:
        self.queue: FairQueue[Waiter] = FairQueue(bounds)
        self.drain = DrainRate()
        self.shares = Shares()
        self.poll: asyncio.Task[None] | None = None
        self.waking = False  # at the next turn of the loop


class WaitingRoom:
    """A fair queue for each base model."""

    def __init__(self, replicas: Replicas, costs: PlacementCosts, bounds: Bounds, patience: Patience) -> None:
        self._replicas = replicas
        self._costs = costs
        self._bounds = bounds
        self._patience = patience
        self._rooms: dict[str, _Room] = {}
        replicas.call_after_refresh(self.wake_all)

    def is_empty(self, base_model: str) -> bool:
        """Whether nobody waits for this base model."""
        room = self._rooms.get(base_model)
        return room is None or not room.queue.requests

    def ranking(self, demand: Demand, *, tried: frozenset[str] = frozenset(), overdue: bool = False) -> Ranking:
        """Where a request could go now."""
        alive = self._replicas.alive(demand.base_model)
        return rank(alive, self._wish(demand, overdue=overdue), self._costs, tried=tried)

    def seat(self, demand: Demand, candidate: Candidate) -> Seat:
        """Count a request on a replica from now on."""
        shares = self._room(demand.base_model).shares
        return take_seat(demand, candidate, shares, self._wish(demand), self._costs)

    def enter(self, demand: Demand) -> Entry[Waiter]:
        """Begin to wait. Raises Unavailable ``overloaded`` at once where the queue is full, or where it empties too
        slowly for this request's turn to come in time.
        """
        loop = asyncio.get_running_loop()
        room, now = self._room(demand.base_model), loop.time()
        waiter = Waiter(demand, now + self._patience.wait_s, loop.create_future(), now)
        entry = Entry(
            tenant_id=demand.tenant_id, weight=demand.limits.weight, tier=demand.limits.tier,
            tokens=demand.tokens, item=waiter,
        )  # fmt: skip
        wait_s = room.drain.wait_s(room.queue.tokens_ahead(entry), now)
        if wait_s is not None and wait_s > self._patience.wait_s * _SHED_SHARE:
            raise self._overloaded("late", wait_s)
        try:
            pushed_out = room.queue.push(entry)
        except QueueFull as full:
            raise self._overloaded(full.reason, wait_s) from None
        if pushed_out is not None:
            self._refuse(room, pushed_out, "pushed_out")
        self._changed(demand.base_model, room)
        return entry

    async def turn(self, entry: Entry[Waiter]) -> Seat:
        """Wait until there seems to be room. Raises Unavailable ``overloaded`` when the request has waited too long."""
        waiter = entry.item
        self._seat_all(waiter.demand.base_model)
        try:
            async with asyncio.timeout_at(waiter.deadline):
                seat = await waiter.seat
        except TimeoutError:
            self.leave(entry)
            room = self._room(waiter.demand.base_model)
            now = asyncio.get_running_loop().time()
            raise self._overloaded("aged", room.drain.wait_s(room.queue.tokens_ahead(entry), now)) from None
        except BaseException:
            self.leave(entry)
            raise
        metrics.queue_seconds.observe(asyncio.get_running_loop().time() - waiter.arrived)
        return seat

    def put_back(self, entry: Entry[Waiter], seat: Seat) -> None:
        """The seat was taken after all: wait on, in the old place."""
        seat.leave()
        waiter = entry.item
        waiter.seat = asyncio.get_running_loop().create_future()
        if waiter.gone:
            waiter.seat.set_exception(ClientGone())
        room = self._room(waiter.demand.base_model)
        room.queue.put_back(entry)
        room.drain.note(-entry.tokens, asyncio.get_running_loop().time())
        self._changed(waiter.demand.base_model, room)

    def hang_up(self, entry: Entry[Waiter]) -> None:
        """Its caller has gone: whoever waits for its turn hears ClientGone, now or when it has to wait again. One that
        gets a place notices by itself.
        """
        entry.item.gone = True
        if not entry.item.seat.done():
            entry.item.seat.set_exception(ClientGone())

    def leave(self, entry: Entry[Waiter]) -> None:
        """Wait no more; a seat that came at the same moment is free for another."""
        waiter = entry.item
        base_model = waiter.demand.base_model
        room = self._room(base_model)
        if room.queue.waits(entry):
            room.queue.remove(entry)
            self._changed(base_model, room)
        elif waiter.seat.done() and not waiter.seat.cancelled() and waiter.seat.exception() is None:
            waiter.seat.result().leave()
            self.wake(base_model)

    def wake_all(self) -> None:
        """Something may have changed on any replica."""
        for base_model, room in self._rooms.items():
            if room.queue.requests:
                self.wake(base_model)

    def wake(self, base_model: str) -> None:
        """Something may have changed: look who can be seated, once for all that changes in this turn of the loop."""
        room = self._room(base_model)
        if room.queue.requests and not room.waking:
            room.waking = True
            asyncio.get_running_loop().call_soon(self._seat_all, base_model)

    def _seat_all(self, base_model: str) -> None:
        """Give seats to those whose turn it is, for as long as there seems to be room."""
        room = self._room(base_model)
        room.waking = False
        while room.queue.requests and self._seat_next(base_model, room):
            pass

    def _seat_next(self, base_model: str, room: _Room) -> bool:
        """Seat one request; False where nobody can be seated."""
        now = asyncio.get_running_loop().time()
        alive = self._replicas.alive(base_model)
        glance = Glance(alive, self._costs)
        passed: list[tuple[Waiter, Wish]] = []
        blocked: set[str] = set()  # tenants whose oldest request lacks pages: their later ones do not pass it
        hopeless: set[tuple[str, bool]] = set()  # adapters that lack a slot
        claimed: dict[bool, set[str]] = {True: set(), False: set()}
        for entry in room.queue.in_order(of_tenant_max=_OF_TENANT_MAX):
            waiter = entry.item
            if waiter.seat.done():
                continue  # it was cancelled, and is about to leave
            overdue = waiter.passed_at is not None and now - waiter.passed_at > self._patience.passed_over_s
            wish = self._wish(waiter.demand, overdue=overdue)
            if entry.tenant_id in blocked or (not overdue and (wish.adapter, wish.headroom) in hopeless):
                continue
            lacks_slot = glance.lacks_slot(wish)
            lacks_pages = not lacks_slot and glance.lacks_pages(wish)
            ranking = NOWHERE
            if not (lacks_slot or lacks_pages) or (overdue and not waiter.claim):
                ranking = rank(alive, wish, self._costs, tried=claimed[wish.headroom] - {waiter.claim})
            if ranking.now:
                self._grant(room, entry, ranking.now[0], now)
                for other, others_wish in passed:
                    if other.passed_at is None and (others_wish.headroom or not wish.headroom):
                        other.passed_at = now
                return True
            passed.append((waiter, wish))
            if len(passed) >= _PASSED_MAX:
                return False
            if lacks_pages or ranking.full or not wish.adapter:
                blocked.add(entry.tenant_id)
            else:
                hopeless.add((wish.adapter, wish.headroom))
            if overdue and (waiter.claim or ranking.able):
                waiter.claim = waiter.claim or ranking.able[0].status.id
                for headroom in (True, False) if wish.headroom else (False,):
                    claimed[headroom].add(waiter.claim)
        return False

    def _grant(self, room: _Room, entry: Entry[Waiter], candidate: Candidate, now: float) -> None:
        demand = entry.item.demand
        seat = self.seat(demand, candidate)
        seat.account = room.queue.remove(entry)
        seat.correct(service(demand.input_tokens, demand.output_tokens))
        room.drain.note(entry.tokens, now)
        self._changed(demand.base_model, room)
        entry.item.seat.set_result(seat)

    async def _poll(self, base_model: str, room: _Room) -> None:
        """While anybody waits, ask Redis what is held: other gateways give pages back without a word."""
        while room.queue.requests:
            await asyncio.sleep(self._patience.poll_s * random.uniform(0.5, 1.5))  # noqa: S311 - spread, not secrecy
            with contextlib.suppress(RedisError, OSError):  # the follower of the replicas says so
                await self._replicas.refresh_held(base_model)
            self.wake(base_model)

    def _changed(self, base_model: str, room: _Room) -> None:
        """Keep the clock, the poll and the gauge in step with a queue that has grown or shrunk."""
        loop = asyncio.get_running_loop()
        if room.queue.requests:
            room.drain.begin(loop.time())
            if room.poll is None or room.poll.done():
                room.poll = loop.create_task(self._poll(base_model, room))
        else:
            room.drain.end(loop.time())
        metrics.waiting.set(sum(each.queue.requests for each in self._rooms.values()))

    def _wish(self, demand: Demand, *, overdue: bool = False) -> Wish:
        shares, pages_total = self._room(demand.base_model).shares, self._replicas.pages_total(demand.base_model)
        headroom = shares.is_below(
            demand.tenant_id,
            demand.limits.weight,
            demand.wish().pages(PAGE_TOKENS),
            pages_total,
            self._replicas.gateways,
        )
        return demand.wish(headroom=headroom, overdue=overdue)

    def _refuse(self, room: _Room, entry: Entry[Waiter], reason: str) -> None:
        now = asyncio.get_running_loop().time()
        error = self._overloaded(reason, room.drain.wait_s(room.queue.tokens_ahead(entry), now))
        if not entry.item.seat.done():
            entry.item.seat.set_exception(error)

    def _overloaded(self, reason: str, wait_s: float | None) -> Unavailable:
        metrics.queue_refusals.labels(reason).inc()
        honest_s = min(max(wait_s or 0.0, _RETRY_MIN_S), _RETRY_MAX_S)
        return Unavailable(
            "All replicas of this model are busy.",
            code="overloaded",
            retry_after_s=honest_s * (1 + random.random() * _RETRY_JITTER),  # noqa: S311 - spread, not secrecy
        )

    def _room(self, base_model: str) -> _Room:
        room = self._rooms.get(base_model)
        if room is None:
            room = self._rooms[base_model] = _Room(self._bounds)
        return room
