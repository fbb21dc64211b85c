"""Takes canary jobs of this replica's placement group, one at a time, runs each adapter and its base model, and reports
the verdict.

The verdict is about the adapter alone. Any other failure (an unavailable store, a busy engine) is answered with
"later", after the engine has answered for its base model again. If the engine never does, its agent ends, and the
record that the job was taken stays in Redis: it shows that the run cost a replica.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Literal

import aiohttp
import msgspec
import structlog
from redis.asyncio import Redis

from core import redis_keys
from core.contracts.canary import CanaryJob, CanaryResult, CanaryRunning
from data_plane.engine.agent import metrics
from data_plane.engine.agent.canary.run import PROMPTS, AnswerFailed, CanaryRun
from data_plane.engine.agent.canary.verdict import (
    DIFFERENCE_CERTAIN,
    CanaryAnswer,
    difference,
    is_negligible,
    is_significant,
)
from data_plane.engine.agent.control_client import ControlClient, ControlRequestFailed
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_BLOCK_S: Final = 2  # below the client's own timeout
_SAMPLE_CHARS_MAX: Final = 200
_BASE_RETRY_S: Final = 1.0
_RUNNING_EXPIRES_S: Final = 3600  # longer than it takes to start another replica
_LATER: Final = (429, 502, 503, 504)  # the engine's statuses that do not blame the adapter

NO_VERDICT: Final = (
    ControlRequestFailed,
    AnswerFailed,
    aiohttp.ClientError,
    TimeoutError,
    msgspec.MsgspecError,
    ValueError,  # an event that is too long
    LookupError,
    TypeError,  # an event of another shape
)

Code = Literal["canary_failed_to_load", "canary_not_finite", "canary_no_effect", "canary_later"]


class CanaryJobs:
    """``run_once`` waits a moment for a job and runs it. ``takes_jobs`` returns whether the engine should get more
    work, ``is_revoked`` whether an engine name must not run.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        control: ControlClient,
        run: CanaryRun,
        *,
        boot_id: str,
        takes_jobs: Callable[[], bool],
        is_revoked: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._control = control
        self._run = run
        self._boot_id = boot_id
        self._takes_jobs = takes_jobs
        self._is_revoked = is_revoked
        self._is_busy = False
        self._unsent: CanaryResult | None = None
        self._jobs = redis_keys.canary_jobs(settings.base_model, settings.engine_rank_max)

    @property
    def is_running(self) -> bool:
        """Whether a job was taken and is not answered yet."""
        return self._is_busy or self._unsent is not None

    async def run_once(self) -> None:
        """Run the next job, if there is one. Raises redis.RedisError; an unsent result is sent by the next call."""
        if self._unsent is None:
            job = await self._take_job()
            if job is None:
                return
            began = time.monotonic()
            self._is_busy = True
            try:
                self._unsent = await self._outcome(job)
            finally:
                self._is_busy = False
            code = self._unsent.code
            metrics.CANARIES.labels("lost" if code == "canary_later" else code or "passed").inc()
            metrics.CANARY_SECONDS.observe(time.monotonic() - began)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.lpush(redis_keys.CANARY_RESULTS, msgspec.json.encode(self._unsent))
            pipe.delete(redis_keys.canary_running(self._unsent.revision_id))
            await pipe.execute()
        self._unsent = None

    async def _outcome(self, job: CanaryJob) -> CanaryResult:
        """The verdict, or "later". After a failed run the engine must answer for its base model first."""
        if self._is_revoked(job.engine_name):
            return self._result(job, None, None, "canary_later", "the adapter is revoked")
        try:
            return await self.verdict(job)
        except NO_VERDICT as error:
            _log.warning("canary gave no verdict; it is retried later", revision=job.revision_id, error=repr(error))
            await self._until_base_answers()
            return self._result(job, None, None, "canary_later", repr(error)[:_SAMPLE_CHARS_MAX])

    async def _until_base_answers(self) -> None:
        """Wait without a limit: the agent's probes decide whether the engine is lost."""
        while True:
            try:
                await self._run_base()
            except NO_VERDICT:
                await asyncio.sleep(_BASE_RETRY_S)
            else:
                return

    async def _take_job(self) -> CanaryJob | None:
        """Wait a moment for a job and record that it is taken. A job lost in between is requested again."""
        if not self._takes_jobs():
            return None
        popped = await self._redis.brpop([self._jobs], timeout=_BLOCK_S)
        if popped is None:
            return None
        try:
            job = msgspec.json.decode(popped[1], type=CanaryJob)
        except msgspec.MsgspecError as error:
            _log.error("invalid canary job", error=str(error))
            return None
        running = CanaryRunning(attempt=job.attempt, replica_id=self._settings.replica_id, boot_id=self._boot_id)
        await self._redis.set(
            redis_keys.canary_running(job.revision_id), msgspec.json.encode(running), ex=_RUNNING_EXPIRES_S
        )
        return job

    async def verdict(self, job: CanaryJob) -> CanaryResult:
        """Run the base model, then the adapter. Raises an error of ``NO_VERDICT`` when there is no verdict."""
        base = await self._run_base()
        if not all(answer.is_finite for answer in base):
            raise AnswerFailed(200, "the base model itself returns numbers that are not finite")
        began = time.monotonic()
        try:
            await self._control.prefetch(
                job.engine_name, "memory", tenant=None, timeout_s=self._settings.canary_load_timeout_s
            )
        except ControlRequestFailed as error:
            if error.answered in _LATER:
                raise
            return self._result(
                job, base, None, "canary_failed_to_load", f"The adapter cannot be loaded: {error.message}"
            )
        load_ms = round((time.monotonic() - began) * 1000)
        try:
            adapter = await self._run_adapter(job)
        except AnswerFailed as error:
            if error.status in _LATER:
                raise
            await self._run_base()  # raises when the engine fails without the adapter as well
            code: Code = "canary_failed_to_load" if error.status in (400, 404) else "canary_not_finite"
            return self._result(
                job, base, None, code, "The engine fails with this adapter, but not with its base model."
            )
        load_ms += self._run.first_token_ms
        if not all(answer.is_finite for answer in adapter):
            return self._result(
                job, base, adapter, "canary_not_finite",
                "The adapter makes log-probabilities infinite or NaN; check the training for overflow.",
                load_ms=load_ms,
            )  # fmt: skip
        return await self._compare(job, base, adapter, load_ms)

    async def _compare(
        self, job: CanaryJob, base: list[CanaryAnswer], adapter: list[CanaryAnswer], load_ms: int
    ) -> CanaryResult:
        """Compare the difference with the noise. The base model runs once more only when the difference is not certain.
        All three run again while noise from other requests could hide the difference.
        """
        found = difference(base, adapter)
        for attempt in range(1, self._settings.canary_rounds_max + 1):
            noise = 0.0 if found >= DIFFERENCE_CERTAIN else difference(base, await self._run_base())
            if is_significant(found, noise):
                return self._result(job, base, adapter, None, "", found=found, load_ms=load_ms)
            if is_negligible(found) or attempt == self._settings.canary_rounds_max:
                break
            base, adapter = await self._run_base(), await self._run_adapter(job)
            found = difference(base, adapter)
        message = (
            "The adapter answers exactly like the base model. Check that training ran and that its weights were saved. "
            f"(Its log-probabilities differ by {found:.4f} nats, those of two runs of the base model by {noise:.4f}.)"
        )
        return self._result(job, base, adapter, "canary_no_effect", message, found=found, load_ms=load_ms)

    async def _run_base(self) -> list[CanaryAnswer]:
        return await self._run.answers(
            self._settings.base_model, adapter=False, answer_tokens=self._settings.canary_answer_tokens
        )

    async def _run_adapter(self, job: CanaryJob) -> list[CanaryAnswer]:
        return await self._run.answers(job.engine_name, adapter=True, answer_tokens=self._settings.canary_answer_tokens)

    def _result(
        self,
        job: CanaryJob,
        base: list[CanaryAnswer] | None,
        adapter: list[CanaryAnswer] | None,
        code: Code | None,
        message: str,
        *,
        found: float = 0.0,
        load_ms: int = 0,
    ) -> CanaryResult:
        return CanaryResult(
            revision_id=job.revision_id,
            attempt=job.attempt,
            replica_id=self._settings.replica_id,
            code=code,
            message=message,
            prompt=PROMPTS[0],
            base_answer="" if base is None else base[0].text[:_SAMPLE_CHARS_MAX],
            adapter_answer="" if adapter is None else adapter[0].text[:_SAMPLE_CHARS_MAX],
            logprob_difference=found,
            load_ms=load_ms,
        )
