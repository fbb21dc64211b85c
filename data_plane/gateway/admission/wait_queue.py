"""Where requests wait for room on a replica. A change wakes the queue; requests do not poll Redis. The fair queue
decides the order of turns, placement decides the replica, and admission reserves it.

Beside other gateways, a process takes only its tenants' fair share of a pool (scheduling/fair_share.py). A turn is a
guess from the view of this process: Redis has the last word, and a request that Redis refuses returns to its old place.
"""

import asyncio
import contextlib
import heapq
import random
from collections.abc import Iterator
from typing import Final

from redis.exceptions import RedisError

from core.contracts.demand import TenantDemand
from core.errors import AppError, TooManyRequests, Unavailable
from data_plane.gateway import metrics
from data_plane.gateway.admission.assignment import Assignment, assign
from data_plane.gateway.admission.fair_queue import QueueBounds, QueueEntry, WaitQueueFull, service
from data_plane.gateway.admission.giving_way import make_room
from data_plane.gateway.admission.pool_queue import PoolQueue, WaitingRequest, WaitLimits
from data_plane.gateway.admission.queue_scan import QueueScan
from data_plane.gateway.api.inference_request import InferenceRequest
from data_plane.gateway.scheduling.fair_share import BacklogBounds, GatewayBacklog, elsewhere_on
from data_plane.gateway.scheduling.placement import (
    Candidate,
    PlacementCosts,
    PlacementQuery,
    Ranking,
    open_pages,
    rank,
)
from data_plane.gateway.scheduling.replicas import Replicas

_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 60.0
_RETRY_JITTER: Final = 0.25  # callers that were refused together must not retry together
_TENANT_SCAN_MAX: Final = 8  # requests of one tenant in one scan: more may want adapters that have no slot


class WaitQueue:
    """A fair queue for each base model."""

    def __init__(
        self,
        replicas: Replicas,
        costs: PlacementCosts,
        bounds: QueueBounds,
        limits: WaitLimits,
        backlog_bounds: BacklogBounds,
    ) -> None:
        self._replicas = replicas
        self._costs = costs
        self._bounds = bounds
        self._limits = limits
        self._backlog_bounds = backlog_bounds
        self._pools: dict[str, PoolQueue] = {}
        replicas.call_after_refresh(self.wake_all)
        replicas.peers.connect(self._backlog, self._apply_backlogs)

    def waiting(self) -> Iterator[InferenceRequest]:
        """All requests that wait now."""
        for pool in self._pools.values():
            for account in pool.queue.accounts():
                for entry in account.waiting:
                    yield entry.item.request

    def tenant_demands(self) -> list[TenantDemand]:
        """The tenants with the longest waits, and of the others those that hold most, as many as a backlog names."""
        now = asyncio.get_running_loop().time()
        found = [each for base_model, pool in self._pools.items() for each in pool.tenant_demands(base_model, now)]
        most = self._backlog_bounds.tenants_max
        return heapq.nlargest(most, found, key=lambda each: (each.longest_wait_ms, each.held_pages))

    def patience_s(self, request: InferenceRequest) -> float:
        """How long a request may wait."""
        longest_s = self._limits.batch_wait_s if request.is_batch else self._limits.wait_s
        route = request.route
        return longest_s if route is None or route.patience_s is None else min(longest_s, route.patience_s)

    def arrived(self, request: InferenceRequest) -> None:
        """A request asks for a placement for the first time."""
        if not request.is_batch:
            now = asyncio.get_running_loop().time()
            self._pool(request.base_model).arrived[request.closed_pools].add(self._pages(request), now)

    def goes_first(self, request: InferenceRequest) -> bool:
        """Whether no request waits for the pages that this one would take, here or at another gateway."""
        pool = self._pool(request.base_model)
        if not pool.is_ahead_of_all(request, self._replicas.pages_of_pools(request.base_model)):
            return False
        if not pool.gateway_share.bounded:
            return True
        return pool.allows(request, self._pages(request), self._replicas.pages_total(request.base_model))

    def assign_now(self, request: InferenceRequest) -> Iterator[Assignment]:
        """The assignments to try without waiting, best first. Each counts from the moment it is yielded."""
        if self.goes_first(request):
            pool, query = self._pool(request.base_model), self._query(request)
            reserved = pool.reserved_elsewhere[query.headroom]
            candidates, homes = self._replicas.shortlist(request)
            for candidate in rank(candidates, query, self._costs, tried=reserved, homes=homes).now:
                yield assign(candidate, query, pool.shares, self._costs)

    def ranking(
        self, request: InferenceRequest, *, tried: frozenset[str] = frozenset(), overdue: bool = False
    ) -> Ranking:
        """The replicas that could serve a request now. Only where a shortlist has none, all are ranked."""
        query = self._query(request, overdue=overdue)
        candidates, homes = self._replicas.shortlist(request)
        ranking = rank(candidates, query, self._costs, tried=tried, homes=homes)
        if homes is None or ranking.able:
            return ranking
        return rank(self._replicas.alive(request.base_model), query, self._costs, tried=tried)

    def assign(self, request: InferenceRequest, candidate: Candidate) -> Assignment:
        """Count a request on a replica from now on."""
        return assign(candidate, self._query(request), self._pool(request.base_model).shares, self._costs)

    def enter(self, request: InferenceRequest) -> QueueEntry[WaitingRequest]:
        """Enter the queue. Raises Unavailable ``overloaded``, or TooManyRequests for a batch request, at once where the
        queue is full, or where it drains too slowly for this request's turn to come in time.
        """
        pool, now, entry = self._pool(request.base_model), asyncio.get_running_loop().time(), self._entry(request)
        most_s = self.patience_s(request)
        ahead = pool.queue.tokens_ahead(entry)
        wait_s, longest_s = pool.drain.wait_s(ahead, now), pool.drain.wait_s_upper_bound(ahead, now)
        if longest_s is not None and longest_s > most_s:
            raise self._overloaded(request, "late", wait_s)
        try:
            pushed_out = pool.queue.push(entry)
        except WaitQueueFull as full:
            raise self._overloaded(request, full.reason, wait_s) from None
        for each in pushed_out:
            self._refuse(pool, each, "pushed_out")
        self._queue_changed(request.base_model, pool)
        return entry

    def enter_again(self, request: InferenceRequest) -> QueueEntry[WaitingRequest]:
        """Enter the queue with a request that has run and gave way, before others of its tenant and class. Bounds do
        not apply, since it was accepted before.
        """
        pool, entry = self._pool(request.base_model), self._entry(request)
        pool.queue.put_back(entry)
        self._queue_changed(request.base_model, pool)
        return entry

    def _entry(self, request: InferenceRequest) -> QueueEntry[WaitingRequest]:
        loop = asyncio.get_running_loop()
        now = loop.time()
        return QueueEntry(
            tenant_id=request.share_id, weight=request.limits.weight, tier=request.tier,
            tokens=request.tokens, service=service(request.input_tokens, request.output_tokens),
            pages=self._pages(request), urgent=request.service_class == "near_real_time",
            kind=request.closed_pools,
            item=WaitingRequest(request, now + self.patience_s(request), loop.create_future(), now),
        )  # fmt: skip

    async def wait(self, entry: QueueEntry[WaitingRequest]) -> Assignment:
        """Wait until there seems to be room. Raises as ``enter`` when the request has waited too long, or the error
        with which it was refused.
        """
        waiting = entry.item
        base_model = waiting.request.base_model
        self._assign_all(base_model)
        try:
            async with asyncio.timeout_at(waiting.deadline):
                assignment = await waiting.assignment
        except TimeoutError:
            self.cancel(entry)
            pool, now = self._pool(base_model), asyncio.get_running_loop().time()
            wait_s = pool.drain.wait_s(pool.queue.tokens_ahead(entry), now)
            raise self._overloaded(waiting.request, "aged", wait_s) from None
        except BaseException:
            self.cancel(entry)
            raise
        metrics.QUEUE_SECONDS.observe(asyncio.get_running_loop().time() - waiting.arrived)
        return assignment

    def put_back(self, entry: QueueEntry[WaitingRequest], assignment: Assignment) -> None:
        """Redis refused the assignment: the request waits again, in its old place."""
        assignment.cancel()
        waiting = entry.item
        waiting.assignment = asyncio.get_running_loop().create_future()
        if waiting.refusal is not None:
            waiting.assignment.set_exception(waiting.refusal)
        pool = self._pool(waiting.request.base_model)
        pool.queue.put_back(entry)
        pool.drain.record(-entry.tokens, asyncio.get_running_loop().time())
        self._queue_changed(waiting.request.base_model, pool)

    def cancel(self, entry: QueueEntry[WaitingRequest]) -> None:
        """Stop waiting. An assignment that came at the same moment is free for another request."""
        waiting = entry.item
        base_model = waiting.request.base_model
        pool = self._pool(base_model)
        if pool.queue.waits(entry):
            pool.queue.remove(entry)
            self._queue_changed(base_model, pool)
            return
        future = waiting.assignment
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().cancel()
            self.wake(base_model)

    def wake_all(self) -> None:
        """Something may have changed on any replica."""
        for base_model, pool in self._pools.items():
            if pool.queue.requests:
                self.wake(base_model)

    def wake(self, base_model: str) -> None:
        """Something may have changed: scan the queue soon, once for all changes of this iteration of the loop."""
        pool = self._pool(base_model)
        if pool.queue.requests and not pool.waking:
            pool.waking = True
            asyncio.get_running_loop().call_soon(self._assign_all, base_model)

    def _assign_all(self, base_model: str) -> None:
        """Assign requests in the order of their turns while there seems to be room."""
        pool = self._pool(base_model)
        pool.waking = False
        while pool.queue.requests and self._assign_next(base_model, pool):
            pass

    def _assign_next(self, base_model: str, pool: PoolQueue) -> bool:
        """Assign one request; False where no request can be assigned."""
        now, pages_total = asyncio.get_running_loop().time(), self._replicas.pages_total(base_model)
        scan = QueueScan(self._replicas.roomy(base_model), pool, self._costs, now)
        for entry in pool.queue.in_order(of_tenant_max=_TENANT_SCAN_MAX):
            waiting = entry.item
            if waiting.assignment.done():
                continue  # it was cancelled, and is about to leave the queue
            passed_s = 0.0 if waiting.passed_at is None or waiting.request.is_batch else now - waiting.passed_at
            overdue = passed_s > self._limits.overdue_after_s
            query = self._query(waiting.request, overdue=overdue)
            if scan.can_skip(entry.tenant_id, query):
                continue
            deferred = not pool.allows(waiting.request, entry.pages, pages_total, overdue=overdue)
            if candidate := scan.find(entry.tenant_id, waiting, query, deferred=deferred):
                self._grant(pool, entry, candidate, query, now)
                scan.assigned(query)
                return True
            if scan.is_over:
                break
        pool.tenants_lacking_pages, pool.reserved = None if scan.is_over else scan.blocked, scan.reserved
        if pool.shares.batch and scan.lacking:
            make_room(scan.lacking, self._replicas.alive(base_model), pool.shares.batch, self._costs)
        return False

    def _grant(
        self,
        pool: PoolQueue,
        entry: QueueEntry[WaitingRequest],
        candidate: Candidate,
        query: PlacementQuery,
        now: float,
    ) -> None:
        assignment = assign(candidate, query, pool.shares, self._costs)
        assignment.charge(pool.queue.remove(entry), entry.service)
        pool.drain.record(entry.tokens, now)
        self._queue_changed(query.request.base_model, pool)
        entry.item.assignment.set_result(assignment)

    async def _poll(self, base_model: str, pool: PoolQueue) -> None:
        """While a request waits, ask Redis what is held: other gateways give pages back without a message. Poll once
        more at the end, to report to the others that no request waits.
        """
        waiting = True
        while waiting:
            waiting = pool.queue.requests > 0
            await asyncio.sleep(self._limits.poll_s * random.uniform(0.5, 1.5))  # noqa: S311 - spread, not secrecy
            with contextlib.suppress(RedisError, OSError):  # the replicas' own refresh logs it
                await self._replicas.refresh_held(base_model)
            self.wake(base_model)
            waiting = waiting or pool.queue.requests > 0

    def _queue_changed(self, base_model: str, pool: PoolQueue) -> None:
        """Keep the drain rate, the poll and the gauge in step with a queue that has grown or shrunk."""
        loop = asyncio.get_running_loop()
        if pool.queue.requests:
            pool.drain.begin(loop.time())
            if pool.poll is None or pool.poll.done():
                pool.poll = loop.create_task(self._poll(base_model, pool))
        else:
            pool.reserved = {}
            pool.drain.end(loop.time())
        metrics.WAITING_REQUESTS.set(sum(each.queue.requests for each in self._pools.values()))

    def _query(self, request: InferenceRequest, *, overdue: bool = False) -> PlacementQuery:
        base_model = request.base_model
        pool, pages_total = self._pool(base_model), self._replicas.pages_total(base_model)
        headroom = not (request.is_batch or pool.is_outranked(request)) and (
            pool.shares.is_idle(request.share_id) or pool.is_below(request, self._pages(request), pages_total)
        )
        left_free = None
        if request.is_batch:
            left_free = pool.left_free(self._replicas.pages_of_pools(base_model), asyncio.get_running_loop().time())
        return PlacementQuery(request, headroom, overdue, self._replicas.failed_by(request.engine_name), left_free)

    def _pages(self, request: InferenceRequest) -> int:
        return request.pages(self._replicas.block_tokens(request.base_model))

    def _backlog(self, base_model: str) -> GatewayBacklog:
        pool = self._pools.get(base_model)
        if pool is None:
            return GatewayBacklog()
        now = asyncio.get_running_loop().time()
        pages_of_pools = self._replicas.pages_of_pools(base_model)
        return pool.backlog(self._replicas.pool(base_model), pages_of_pools, self._backlog_bounds, now)

    def _apply_backlogs(self, base_model: str, sent: GatewayBacklog, others: list[GatewayBacklog]) -> None:
        candidates = self._replicas.pool(base_model)
        alive = {each.status.id for each in self._replicas.alive(base_model) if each.status.state == "ready"}
        pages = 0
        for candidate in candidates:
            candidate.load.elsewhere = elsewhere_on(candidate.status.id, others)
            # Requests on a replica without new placements still hold pages, which belong to no gateway's share.
            pages += open_pages(candidate, self._costs) if candidate.status.id in alive else candidate.load.held_pages
        pool = self._pool(base_model)
        pool.apply(sent, others, pages, asyncio.get_running_loop().time())
        pool.give_way(candidates)

    def _refuse(self, pool: PoolQueue, entry: QueueEntry[WaitingRequest], reason: str) -> None:
        now = asyncio.get_running_loop().time()
        error = self._overloaded(entry.item.request, reason, pool.drain.wait_s(pool.queue.tokens_ahead(entry), now))
        entry.item.refuse(error)

    def _overloaded(self, request: InferenceRequest, reason: str, wait_s: float | None) -> AppError:
        metrics.QUEUE_REFUSALS.labels(reason).inc()
        expected_s = min(max(wait_s or 0.0, _RETRY_MIN_S), _RETRY_MAX_S)
        retry_after_s = expected_s * (1 + random.random() * _RETRY_JITTER)  # noqa: S311 - spread, not secrecy
        if request.is_batch:
            return TooManyRequests(
                "No room for a batch request now, and it is not charged. Retry later, or as another class of service.",
                code="resource_unavailable",
                retry_after_s=retry_after_s,
            )
        return Unavailable("All replicas of this model are busy.", code="overloaded", retry_after_s=retry_after_s)

    def _pool(self, base_model: str) -> PoolQueue:
        pool = self._pools.get(base_model)
        if pool is None:
            pool = self._pools[base_model] = PoolQueue(self._bounds)
        return pool
