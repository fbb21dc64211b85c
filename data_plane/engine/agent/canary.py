"""Takes canary jobs of this replica's pool, one at a time, runs each adapter beside its base, and reports the verdict.

A verdict is given only where the adapter is to blame. Whatever else goes wrong (a store that is away, an engine that
fails the base too, this process's death) gives none, and the control plane asks again.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

import aiohttp
import msgspec
import structlog
from redis.asyncio import Redis

from core import keys
from core.contracts import CanaryJob, CanaryResult
from data_plane.engine.agent import metrics
from data_plane.engine.agent.canary_run import PROMPTS, AnswerFailed, CanaryRun
from data_plane.engine.agent.canary_verdict import BEYOND_DOUBT, Answer, difference, is_nothing, is_plain
from data_plane.engine.agent.door_client import Door, DoorRefused
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_BLOCK_S: Final = 2  # below the client's own timeout
_SHOWN_CHARS: Final = 200
_LATER: Final = (429, 502, 503, 504)  # the door's way to say that the adapter is not to blame

_NO_VERDICT: Final = (
    DoorRefused,
    AnswerFailed,
    aiohttp.ClientError,
    TimeoutError,
    msgspec.MsgspecError,
    ValueError,  # an event too long to be one
    LookupError,
    TypeError,  # or of another shape
)

Code = Literal["canary_failed_to_load", "canary_not_finite", "canary_no_effect"]


class Canaries:
    """``step`` waits for a job for a moment and does it. ``takes_jobs`` says whether the engine should have more work,
    ``refused`` which names it must not run.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        door: Door,
        run: CanaryRun,
        *,
        takes_jobs: Callable[[], bool],
        refused: Callable[[], frozenset[str]],
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._door = door
        self._run = run
        self._takes_jobs = takes_jobs
        self._refused = refused
        self.is_running = False
        self._jobs = keys.canary_jobs(settings.base_model, settings.engine_rank_max)

    async def step(self) -> None:
        """Do the next job, if there is one. Raises redis.RedisError."""
        job = await self._take()
        if job is None:
            return
        began = time.monotonic()
        self.is_running = True
        try:
            result = None if job.engine_name in self._refused() else await self.judge(job)
        except _NO_VERDICT as error:
            metrics.CANARIES.labels("lost").inc()
            _log.warning("canary gave no verdict; it will be asked again", revision=job.revision_id, error=repr(error))
            return
        finally:
            self.is_running = False
        if result is None:
            return
        metrics.CANARIES.labels(result.code or "passed").inc()
        metrics.CANARY_SECONDS.observe(time.monotonic() - began)
        await self._redis.lpush(keys.CANARY_RESULTS, msgspec.json.encode(result))

    async def _take(self) -> CanaryJob | None:
        """Wait a moment for a job. Once taken it is this replica's alone; one that is lost is asked for again."""
        if not self._takes_jobs():
            return None
        popped = await self._redis.brpop([self._jobs], timeout=_BLOCK_S)
        if popped is None:
            return None
        try:
            return msgspec.json.decode(popped[1], type=CanaryJob)
        except msgspec.MsgspecError as error:
            _log.error("a canary job cannot be read", error=str(error))
            return None

    async def judge(self, job: CanaryJob) -> CanaryResult:
        """Run the base, then the adapter. Raises what gives no verdict."""
        base = await self._ask_base()
        if not all(answer.is_finite for answer in base):
            raise AnswerFailed(200, "the base model itself gives no finite numbers")
        began = time.monotonic()
        try:
            await self._door.prefetch(job.engine_name, "memory", timeout_s=self._settings.canary_load_s)
        except DoorRefused as error:
            if error.answered in _LATER:
                raise
            return self._result(
                job, base, None, "canary_failed_to_load", f"The adapter cannot be loaded: {error.message}"
            )
        load_ms = round((time.monotonic() - began) * 1000)
        try:
            adapter = await self._ask_adapter(job)
        except AnswerFailed as error:
            if error.status in _LATER:
                raise
            await self._ask_base()  # raises when the engine is to blame
            code: Code = "canary_failed_to_load" if error.status in (400, 404) else "canary_not_finite"
            return self._result(
                job, base, None, code, "The engine fails with this adapter and not with its base model."
            )
        load_ms += self._run.first_token_ms
        if not all(answer.is_finite for answer in adapter):
            return self._result(
                job, base, adapter, "canary_not_finite",
                "The adapter makes probabilities infinite or not a number; check the training for overflow.",
                load_ms=load_ms,
            )  # fmt: skip
        return await self._compare(job, base, adapter, load_ms)

    async def _compare(self, job: CanaryJob, base: list[Answer], adapter: list[Answer], load_ms: int) -> CanaryResult:
        """Tell a difference from noise. The base is asked once more only where the difference is not beyond doubt, and
        all three again while other requests' noise could hide it.
        """
        found = difference(base, adapter)
        for attempt in range(1, self._settings.canary_rounds_max + 1):
            noise = 0.0 if found >= BEYOND_DOUBT else difference(base, await self._ask_base())
            if is_plain(found, noise):
                return self._result(job, base, adapter, None, "", found=found, load_ms=load_ms)
            if is_nothing(found) or attempt == self._settings.canary_rounds_max:
                break
            base, adapter = await self._ask_base(), await self._ask_adapter(job)
            found = difference(base, adapter)
        message = (
            f"The adapter changes nothing: its probabilities differ from the base model's by {found:.4f} nats, the "
            f"base's from its own by {noise:.4f}. Check that training ran and that the trained weights were saved."
        )
        return self._result(job, base, adapter, "canary_no_effect", message, found=found, load_ms=load_ms)

    async def _ask_base(self) -> list[Answer]:
        return await self._run.answers(
            self._settings.base_model, adapter=False, answer_tokens=self._settings.canary_answer_tokens
        )

    async def _ask_adapter(self, job: CanaryJob) -> list[Answer]:
        return await self._run.answers(job.engine_name, adapter=True, answer_tokens=self._settings.canary_answer_tokens)

    def _result(
        self,
        job: CanaryJob,
        base: list[Answer],
        adapter: list[Answer] | None,
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
            base_answer=base[0].text[:_SHOWN_CHARS],
            adapter_answer="" if adapter is None else adapter[0].text[:_SHOWN_CHARS],
            logprob_difference=found,
            load_ms=load_ms,
        )
