"""Carries canary jobs to the pools' lists in Redis, and results back to the rows. No transaction contains a call to
Redis. A job or result that gets lost is requested again after its timeout.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import structlog
from redis import Redis
from sqlalchemy import Engine

from control_plane.fleet import service as fleet
from control_plane.registry.review import canary_jobs
from control_plane.registry.review.canary_jobs import BATCH_MAX, AttemptState, CanaryPool
from control_plane.settings import WorkerSettings
from core import redis_keys
from core.contracts.canary import CanaryJob, CanaryResult, CanaryRunning
from core.contracts.replicas import ReplicaStatus
from core.db import unit_of_work


class CanaryWorker:
    """One round collects results, then requests runs. Any number of workers may run: rows are locked, and a result that
    two of them read is applied once.
    """

    def __init__(self, engine: Engine, redis: Redis, settings: WorkerSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings

    def run_once(self) -> bool | float:
        """Collect results and request runs. Returns whether more results may be waiting, or, while a revision waits for
        its run or its result, the seconds until the next look: agents report in Redis.
        """
        alive = fleet.statuses(self._redis)
        states = self._attempt_states(
            alive
        )  # before collecting: a replica that answers after this scan still counts as running
        collected = self._collect()
        waiting = self._ask(canary_jobs.pools_of(alive), states)
        if collected == BATCH_MAX:
            return True
        return self._settings.canary_poll_ms / 1000 if waiting else False

    def _attempt_states(self, alive: Sequence[ReplicaStatus]) -> dict[tuple[str, int], AttemptState]:
        """The states of the overdue attempts, by revision and attempt."""
        with unit_of_work(self._engine) as session:
            attempts = canary_jobs.overdue(session, self._settings)
        if not attempts:
            return {}
        waiting = {attempt for pool in canary_jobs.pools_of(alive) for attempt in self._waiting(pool)}
        running = cast("list[bytes | None]", self._redis.mget([redis_keys.canary_running(each) for each in attempts]))
        boots = {status.id: status.boot_id for status in alive}
        states: dict[tuple[str, int], AttemptState] = {}
        for attempt, encoded in zip(attempts.items(), running, strict=True):
            taken = None if encoded is None else msgspec.json.decode(encoded, type=CanaryRunning)
            if attempt in waiting:
                states[attempt] = "open"
            elif taken is None or taken.attempt != attempt[1]:
                states[attempt] = "lost"
            else:
                states[attempt] = "open" if boots.get(taken.replica_id) == taken.boot_id else "replica_died"
        return states

    def _waiting(self, pool: CanaryPool) -> list[tuple[str, int]]:
        """The attempts in a pool's list that no replica has taken."""
        waiting = cast("list[bytes]", self._redis.lrange(redis_keys.canary_jobs(pool.base_model, pool.rank_max), 0, -1))
        return [
            (job.revision_id, job.attempt) for job in (msgspec.json.decode(each, type=CanaryJob) for each in waiting)
        ]

    def _collect(self) -> int:
        """Apply the oldest results. A result leaves its list only after its decision is committed."""
        results = cast("list[bytes]", self._redis.lrange(redis_keys.CANARY_RESULTS, -BATCH_MAX, -1))
        for encoded in reversed(results):
            try:
                result = msgspec.json.decode(encoded, type=CanaryResult)
            except msgspec.MsgspecError as error:
                structlog.get_logger().error("canary result unreadable", error=str(error))
            else:
                with unit_of_work(self._engine) as session:
                    decided = canary_jobs.decide(session, result)
                structlog.get_logger().info(
                    "canary result applied",
                    revision_id=result.revision_id,
                    code=result.code,
                    decided=decided,
                )
            self._redis.lrem(redis_keys.CANARY_RESULTS, -1, cast("str", encoded))
        return len(results)

    def _ask(self, pools: Sequence[CanaryPool], states: Mapping[tuple[str, int], AttemptState]) -> bool:
        """Request runs. Returns whether any revision waits for its run or its result."""
        with unit_of_work(self._engine) as session:
            if not canary_jobs.any_waits(session):
                return False
            canary_jobs.mark_waiting(session, pools)
            canary_jobs.extend(session, dict(attempt for attempt, state in states.items() if state == "open"))
        for pool in pools:
            with unit_of_work(self._engine) as session:
                jobs = canary_jobs.request_runs(session, pool, states, self._settings)
            for job in jobs:
                self._redis.lpush(redis_keys.canary_jobs(job.base_model, job.rank_class), msgspec.json.encode(job))
                structlog.get_logger().info("canary run requested", revision_id=job.revision_id, attempt=job.attempt)
        return True
