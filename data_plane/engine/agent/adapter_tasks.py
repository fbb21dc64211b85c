"""What an agent does for adapters while it watches its engine, as one bundle of side tasks with a beginning and an end.

What each task does is in the file named after it; here is only which of them there are, and how often they run.
"""

import aiohttp
from redis.asyncio import Redis

from adapters.settings import CacheSettings
from core.contracts.replicas import Residency
from data_plane.engine.agent.background_tasks import BackgroundTasks
from data_plane.engine.agent.canary.jobs import CanaryJobs
from data_plane.engine.agent.canary.run import CanaryRun
from data_plane.engine.agent.control_client import ControlClient
from data_plane.engine.agent.engine_client import ProbeTokens
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.agent.pins import PinnedAdapters
from data_plane.engine.agent.pool import ReplicaPool
from data_plane.engine.agent.prefetch import Prefetcher
from data_plane.engine.agent.prefetch_hints import PrefetchHints
from data_plane.engine.agent.residency_watch import ResidencyWatch
from data_plane.engine.agent.revocations import Revocations
from data_plane.engine.agent.usage_forecast import UsageHistory
from data_plane.engine.settings import ReplicaSettings


class AdapterTasks:
    """Built once for an engine; ``honour_revocations`` before it serves, ``start`` once it does."""

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        session: aiohttp.ClientSession,
        condition: EngineState,
        probes: ProbeTokens,
        *,
        boot_id: str,
    ) -> None:
        self._settings = settings
        self._watch = watch = ResidencyWatch(
            settings.run_dir, CacheSettings().cache_dir, replica_id=settings.replica_id, boot_id=boot_id
        )
        url = f"http://{settings.engine_host}:{settings.engine_port}"
        key = settings.engine_key.get_secret_value()
        door = ControlClient(session, url, key, timeout_s=settings.engine_control_timeout_s)
        pool = ReplicaPool(redis, settings.base_model, me=settings.replica_id, fresh_s=settings.heartbeat_s)
        uses = UsageHistory(names_max=settings.forecast_adapters_max, visit_gap_s=settings.forecast_visit_gap_s)
        self._revocations = Revocations(settings, redis, door, boot_id)
        self._canaries = CanaryJobs(
            settings,
            redis,
            door,
            CanaryRun(session, url, key, probes, answer_s=settings.canary_answer_timeout_s),
            boot_id=boot_id,
            takes_jobs=lambda: condition.takes_jobs,
            refused=self._revocations.refuses,
        )
        self._prefetcher = Prefetcher(
            settings,
            door,
            residency=lambda: watch.table,
            last_use=uses.last_use,
            is_busy=lambda: condition.is_busy,
            refused=self._revocations.refuses,
        )
        self._hints = PrefetchHints(settings, redis, pool, self._prefetcher, uses, residency=lambda: watch.table)
        self._pins = PinnedAdapters(
            settings,
            redis,
            door,
            pool,
            self._prefetcher,
            residency=lambda: watch.table,
            refused=self._revocations.refuses,
        )
        self._tasks = BackgroundTasks(backoff_max_s=settings.background_task_backoff_max_s)

    @property
    def residency(self) -> Residency | None:
        """Where adapters lie, as last seen."""
        return self._watch.current

    @property
    def is_idle(self) -> bool:
        """Whether no canary is running."""
        return not self._canaries.is_running

    async def honour_revocations(self) -> None:
        """What must be done before the replica may serve. Raises what ``Revocations.step`` raises."""
        await self._revocations.honour_at_start()

    def start(self) -> None:
        """Begin all tasks."""
        settings, tasks = self._settings, self._tasks
        tasks.start("residency", self._watch.step, every_s=settings.residency_scan_interval_s)
        tasks.start("revocations", self._revocations.step, every_s=settings.revocation_scan_interval_s)
        tasks.start("canaries", self._canaries.step, every_s=0.1)
        tasks.start("hints", self._hints.follow, every_s=0.1)
        tasks.start("forecast", self._hints.forecast, every_s=settings.forecast_interval_s)
        tasks.start("prefetch", self._prefetcher.step, every_s=settings.prefetch_pause_s)
        tasks.start("pins", self._pins.step, every_s=settings.pins_scan_interval_s)

    async def close(self) -> None:
        """End everything now; twice is once."""
        await self._tasks.close()
        await self._revocations.close()
