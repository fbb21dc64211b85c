"""Carries canary jobs to the pools' lists in Redis and results back to the rows. No Redis call is made inside a
transaction; what is lost on the way is asked for again after its time.
"""

from typing import cast

import msgspec
import structlog
from redis import Redis
from sqlalchemy import Engine

from control_plane.fleet import service as fleet
from control_plane.registry import canary
from control_plane.settings import WorkerSettings
from core import keys
from core.contracts import CanaryJob, CanaryResult
from core.db import unit_of_work


class CanaryExchange:
    """One step collects what has come back, then asks. Any number may run: rows are locked, and results that two of
    them read decide once.
    """

    def __init__(self, engine: Engine, redis: Redis, settings: WorkerSettings) -> None:
        self._engine = engine
        self._redis = redis
        self._settings = settings

    def step(self) -> bool:
        """Collect and ask; whether there may be more at once."""
        collected = self._collect()
        self._ask()
        return collected == self._settings.canary_batch_max

    def _collect(self) -> int:
        """Decide by the oldest results. One leaves its list only after its decision is committed."""
        batch_max = self._settings.canary_batch_max
        results = cast("list[bytes]", self._redis.lrange(keys.CANARY_RESULTS, -batch_max, -1))
        for encoded in reversed(results):
            try:
                result = msgspec.json.decode(encoded, type=CanaryResult)
            except msgspec.MsgspecError as error:
                structlog.get_logger().error("canary result cannot be read", error=str(error))
            else:
                with unit_of_work(self._engine) as session:
                    decided = canary.decide(session, result)
                structlog.get_logger().info(
                    "canary result", revision_id=result.revision_id, code=result.code, decided=decided
                )
            self._redis.lrem(keys.CANARY_RESULTS, -1, cast("str", encoded))
        return len(results)

    def _ask(self) -> None:
        pools = canary.pools_of(fleet.statuses(self._redis))
        with unit_of_work(self._engine) as session:
            canary.wait(session, pools, self._settings)
        for pool in pools:
            with unit_of_work(self._engine) as session:
                jobs = canary.ask(session, pool, self._settings)
            for job in jobs:
                self._push(job)

    def _push(self, job: CanaryJob) -> None:
        """Put the job in its pool's list in place of the one before, which nobody took or whose answer was lost."""
        jobs = keys.canary_jobs(job.base_model, job.rank_class)
        with self._redis.pipeline(transaction=True) as pipe:
            if before := canary.job_before(job):
                pipe.lrem(jobs, 0, cast("str", msgspec.json.encode(before)))
            pipe.lpush(jobs, msgspec.json.encode(job))
            pipe.execute()
        structlog.get_logger().info("canary asked", revision_id=job.revision_id, attempt=job.attempt)
