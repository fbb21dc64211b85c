"""Where requests wait for room on a replica, and how each one's turn comes: when something changed, not by asking Redis
again and again. Whose turn it is, the fair queue decides; where it goes, placement; whether it may, admission.

A process takes of a pool what its own tenants may have beside those of others (sharing.py). A turn is a guess made on
its view: Redis has the last word, and a request that hears no takes its old place again.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Final

from redis.exceptions import RedisError

from core.errors import Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.admission.assignment import Assignment, assign
from data_plane.gateway.admission.demand import Demand
from data_plane.gateway.admission.fair_queue import QueueBounds, QueueEntry, WaitQueueFull, service
from data_plane.gateway.admission.pool_queue import PoolQueue, WaitingRequest, WaitLimits
from data_plane.gateway.admission.queue_scan import QueueScan
from data_plane.gateway.api.client_connection import ClientGone
from data_plane.gateway.scheduling.fair_share import BacklogBounds, GatewayBacklog, elsewhere_on
from data_plane.gateway.scheduling.placement import Candidate, PlacementCosts, Ranking, Wish, open_pages, rank
from data_plane.gateway.scheduling.replicas import Replicas

_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 60.0
_RETRY_JITTER: Final = 0.25  # so that those who were refused together do not come back together
_OF_TENANT_MAX: Final = 8  # of one tenant's requests looked at in one turn: more may want adapters that have no slot


class WaitQueue:
    """A fair queue for each base model."""

    def __init__(
        self, replicas: Replicas, costs: PlacementCosts, bounds: QueueBounds, patience: WaitLimits, told: BacklogBounds
    ) -> None:
        self._replicas = replicas
        self._costs = costs
        self._bounds = bounds
        self._patience = patience
        self._told = told
        self._rooms: dict[str, PoolQueue] = {}
        replicas.call_after_refresh(self.wake_all)
        replicas.peers.connect(self._backlog, self._heard)

    def goes_first(self, demand: Demand) -> bool:
        """Whether nobody waits for the pages that a request would take, here or behind another gateway."""
        room = self._room(demand.base_model)
        if room.queue.requests:
            return False
        if not room.allotment.bounded:
            return True
        return room.allows(demand, self._pages(demand), self._replicas.pages_total(demand.base_model))

    def seats_at_once(self, demand: Demand) -> Iterator[Assignment]:
        """What a request may try without waiting, best first; each is counted from the moment it is taken."""
        if self.goes_first(demand):
            room, wish = self._room(demand.base_model), self._wish(demand)
            kept = room.kept_elsewhere[wish.headroom]
            for candidate in rank(self._replicas.alive(demand.base_model), wish, self._costs, tried=kept).now:
                yield assign(demand, candidate, room.shares, wish, self._costs)

    def ranking(self, demand: Demand, *, tried: frozenset[str] = frozenset(), overdue: bool = False) -> Ranking:
        """Where a request could go now."""
        alive = self._replicas.alive(demand.base_model)
        return rank(alive, self._wish(demand, overdue=overdue), self._costs, tried=tried)

    def seat(self, demand: Demand, candidate: Candidate) -> Assignment:
        """Count a request on a replica from now on."""
        shares = self._room(demand.base_model).shares
        return assign(demand, candidate, shares, self._wish(demand), self._costs)

    def enter(self, demand: Demand) -> QueueEntry[WaitingRequest]:
        """Begin to wait. Raises Unavailable ``overloaded`` at once where the queue is full, or where it empties too
        slowly for this request's turn to come in time.
        """
        loop = asyncio.get_running_loop()
        room, now = self._room(demand.base_model), loop.time()
        waiter = WaitingRequest(demand, now + self._patience.wait_s, loop.create_future(), now)
        entry = QueueEntry(
            tenant_id=demand.tenant_id, weight=demand.limits.weight, tier=demand.limits.tier,
            tokens=demand.tokens, service=service(demand.input_tokens, demand.output_tokens),
            pages=self._pages(demand), item=waiter,
        )  # fmt: skip
        ahead = room.queue.tokens_ahead(entry)
        wait_s, at_most_s = room.drain.wait_s(ahead, now), room.drain.wait_s_at_most(ahead, now)
        if at_most_s is not None and at_most_s > self._patience.wait_s:
            raise self._overloaded("late", wait_s)
        try:
            pushed_out = room.queue.push(entry)
        except WaitQueueFull as full:
            raise self._overloaded(full.reason, wait_s) from None
        if pushed_out is not None:
            self._refuse(room, pushed_out, "pushed_out")
        self._changed(demand.base_model, room)
        return entry

    async def turn(self, entry: QueueEntry[WaitingRequest]) -> Assignment:
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
        metrics.QUEUE_SECONDS.observe(asyncio.get_running_loop().time() - waiter.arrived)
        return seat

    def put_back(self, entry: QueueEntry[WaitingRequest], seat: Assignment) -> None:
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

    def hang_up(self, entry: QueueEntry[WaitingRequest]) -> None:
        """Its caller has gone: whoever waits for its turn hears ClientGone, now or when it has to wait again. One that
        gets a place notices by itself.
        """
        entry.item.gone = True
        if not entry.item.seat.done():
            entry.item.seat.set_exception(ClientGone())

    def leave(self, entry: QueueEntry[WaitingRequest]) -> None:
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

    def _seat_next(self, base_model: str, room: PoolQueue) -> bool:
        """Seat one request; False where nobody can be seated."""
        now, pages_total = asyncio.get_running_loop().time(), self._replicas.pages_total(base_model)
        look = QueueScan(self._replicas.alive(base_model), room, self._costs, now)
        for entry in room.queue.in_order(of_tenant_max=_OF_TENANT_MAX):
            waiter = entry.item
            if waiter.seat.done():
                continue  # it was cancelled, and is about to leave
            overdue = waiter.passed_at is not None and now - waiter.passed_at > self._patience.passed_over_s
            wish = self._wish(waiter.demand, overdue=overdue)
            if look.is_vain(entry.tenant_id, wish):
                continue
            gives_way = not room.allows(waiter.demand, entry.pages, pages_total, overdue=overdue)
            if candidate := look.seek(entry.tenant_id, waiter, wish, gives_way=gives_way):
                self._grant(room, entry, candidate, wish, now)
                look.seated(wish)
                return True
            if look.is_over:
                break
        room.lacking, room.kept = None if look.is_over else look.blocked, look.kept
        return False

    def _grant(
        self, room: PoolQueue, entry: QueueEntry[WaitingRequest], candidate: Candidate, wish: Wish, now: float
    ) -> None:
        demand = entry.item.demand
        seat = assign(demand, candidate, room.shares, wish, self._costs)
        seat.charge(room.queue.remove(entry), entry.service)
        room.drain.note(entry.tokens, now)
        self._changed(demand.base_model, room)
        entry.item.seat.set_result(seat)

    async def _poll(self, base_model: str, room: PoolQueue) -> None:
        """While anybody waits, ask Redis what is held: other gateways give pages back without a word. At the end once
        more, to tell them that nobody does.
        """
        anybody = True
        while anybody:
            anybody = room.queue.requests > 0
            await asyncio.sleep(self._patience.poll_s * random.uniform(0.5, 1.5))  # noqa: S311 - spread, not secrecy
            with contextlib.suppress(RedisError, OSError):  # the follower of the replicas says so
                await self._replicas.refresh_held(base_model)
            self.wake(base_model)
            anybody = anybody or room.queue.requests > 0

    def _changed(self, base_model: str, room: PoolQueue) -> None:
        """Keep the clock, the poll and the gauge in step with a queue that has grown or shrunk."""
        loop = asyncio.get_running_loop()
        if room.queue.requests:
            room.drain.begin(loop.time())
            if room.poll is None or room.poll.done():
                room.poll = loop.create_task(self._poll(base_model, room))
        else:
            room.kept = {}
            room.drain.end(loop.time())
        metrics.WAITING_REQUESTS.set(sum(each.queue.requests for each in self._rooms.values()))

    def _wish(self, demand: Demand, *, overdue: bool = False) -> Wish:
        room, pages_total = self._room(demand.base_model), self._replicas.pages_total(demand.base_model)
        headroom = not room.is_outranked(demand) and (
            room.shares.is_idle(demand.tenant_id) or room.is_below(demand, self._pages(demand), pages_total)
        )
        failed_by = self._replicas.failed_by(demand.engine_name)
        return demand.wish(headroom=headroom, overdue=overdue, failed_by=failed_by)

    def _pages(self, demand: Demand) -> int:
        return demand.pages(self._replicas.block_tokens(demand.base_model))

    def _backlog(self, base_model: str) -> GatewayBacklog:
        room = self._rooms.get(base_model)
        return GatewayBacklog() if room is None else room.backlog(self._replicas.pool(base_model), self._told)

    def _heard(self, base_model: str, told: GatewayBacklog, others: list[GatewayBacklog]) -> None:
        alive = {each.status.id for each in self._replicas.alive(base_model) if each.status.state == "ready"}
        pages = 0
        for candidate in self._replicas.pool(base_model):
            candidate.load.elsewhere = elsewhere_on(candidate.status.id, others)
            # What still runs where nobody is placed any more is claimed as well, and is nobody's share of the others.
            pages += open_pages(candidate, self._costs) if candidate.status.id in alive else candidate.load.held_pages
        self._room(base_model).hear(told, others, pages, asyncio.get_running_loop().time())

    def _refuse(self, room: PoolQueue, entry: QueueEntry[WaitingRequest], reason: str) -> None:
        now = asyncio.get_running_loop().time()
        error = self._overloaded(reason, room.drain.wait_s(room.queue.tokens_ahead(entry), now))
        if not entry.item.seat.done():
            entry.item.seat.set_exception(error)

    def _overloaded(self, reason: str, wait_s: float | None) -> Unavailable:
        metrics.QUEUE_REFUSALS.labels(reason).inc()
        honest_s = min(max(wait_s or 0.0, _RETRY_MIN_S), _RETRY_MAX_S)
        return Unavailable(
            "All replicas of this model are busy.",
            code="overloaded",
            retry_after_s=honest_s * (1 + random.random() * _RETRY_JITTER),  # noqa: S311 - spread, not secrecy
        )

    def _room(self, base_model: str) -> PoolQueue:
        room = self._rooms.get(base_model)
        if room is None:
            room = self._rooms[base_model] = PoolQueue(self._bounds)
        return room
