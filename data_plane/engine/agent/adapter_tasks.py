"""The agent's background tasks for adapters and usage: which exist, how they are connected, and how often they run.

What each task does is in the module named after it.
"""

import aiohttp
from redis.asyncio import Redis

from adapters.settings import CacheSettings
from core.contracts.replicas import Residency
from core.newest_published import NewestPublished
from data_plane.engine.agent.background_tasks import BackgroundTasks
from data_plane.engine.agent.canary.jobs import CanaryJobs
from data_plane.engine.agent.canary.run import CanaryRun
from data_plane.engine.agent.canary.start import StartCanary
from data_plane.engine.agent.control_client import ControlClient
from data_plane.engine.agent.cordons import Cordons
from data_plane.engine.agent.engine_client import ProbeTokens
from data_plane.engine.agent.engine_state import EngineState
from data_plane.engine.agent.engine_usage import EngineUsageReports
from data_plane.engine.agent.live_replicas import LiveReplicas
from data_plane.engine.agent.pins import PinnedAdapters
from data_plane.engine.agent.prefetch import Prefetcher
from data_plane.engine.agent.prefetch_hints import PrefetchHints
from data_plane.engine.agent.residency_watch import ResidencyWatch
from data_plane.engine.agent.revocations import Revocations
from data_plane.engine.agent.snapshot_reader import SnapshotSource
from data_plane.engine.agent.store_probe import StoreProbe
from data_plane.engine.settings import ReplicaSettings


class AdapterTasks:
    """Built once for an engine. Call ``enforce_revocations`` before the engine serves, ``start`` once it serves."""

    def __init__(
        self,
        settings: ReplicaSettings,
        redis: Redis,
        session: aiohttp.ClientSession,
        engine_state: EngineState,
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
        control = ControlClient(session, url, key, timeout_s=settings.engine_control_timeout_s)
        self.store = StoreProbe(control)
        replicas = LiveReplicas(redis, settings.base_model, me=settings.replica_id, fresh_s=settings.heartbeat_s)
        newest = NewestPublished(settings.engine_run_dir / "newest-snapshot")
        published = SnapshotSource(redis, settings.verifier(), newest)
        self._revocations = Revocations(settings, published, control, engine_state, boot_id=boot_id)
        self._canaries = CanaryJobs(
            settings,
            redis,
            control,
            CanaryRun(session, url, key, probes, answer_s=settings.canary_answer_timeout_s),
            boot_id=boot_id,
            takes_jobs=lambda: engine_state.takes_jobs,
            is_revoked=self._revocations.is_revoked,
        )
        self.start_canary = StartCanary(
            settings, redis, replicas, self._canaries, is_revoked=self._revocations.is_revoked
        )
        self._prefetcher = Prefetcher(
            settings,
            control,
            residency=lambda: watch.table,
            is_busy=lambda: engine_state.is_busy,
            is_revoked=self._revocations.is_revoked,
        )
        self._hints = PrefetchHints(settings, redis, replicas, self._prefetcher, residency=lambda: watch.table)
        self._pins = PinnedAdapters(
            settings,
            published,
            control,
            replicas,
            self._prefetcher,
            residency=lambda: watch.table,
            is_revoked=self._revocations.is_revoked,
        )
        self.cordons = Cordons(settings, published)
        self._usage = EngineUsageReports(settings, redis, control, boot_id=boot_id)
        self._tasks = BackgroundTasks(backoff_max_s=settings.background_task_backoff_max_s)

    @property
    def residency(self) -> Residency | None:
        """Where adapters are, as last scanned."""
        return self._watch.current

    @property
    def is_idle(self) -> bool:
        """Whether no canary is running."""
        return not self._canaries.is_running

    async def enforce_revocations(self) -> None:
        """Enforce the revocations, and read the cordons, before the replica serves. Raises what
        ``Revocations.run_once`` raises.
        """
        await self._revocations.enforce_at_start()
        await self.cordons.run_once()

    def start(self) -> None:
        """Start all tasks."""
        settings, tasks = self._settings, self._tasks
        tasks.start("residency", self._watch.scan, interval_s=settings.residency_scan_interval_s)
        tasks.start("revocations", self._revocations.run_once, interval_s=settings.revocation_scan_interval_s)
        tasks.start("cordons", self.cordons.run_once, interval_s=settings.revocation_scan_interval_s)
        tasks.start("canaries", self._canaries.run_once, interval_s=0.1)
        tasks.start("hints", self._hints.run_once, interval_s=0.1)
        tasks.start("prefetch", self._prefetcher.run_once, interval_s=settings.prefetch_pause_s)
        tasks.start("engine usage", self._usage.run_once, interval_s=settings.engine_usage_interval_s)
        tasks.start("store", self.store.run_once, interval_s=settings.store_probe_interval_s)
        tasks.start("pins", self._pins.run_once, interval_s=settings.pins_scan_interval_s)

    async def report_usage(self) -> None:
        """Send the last counts of an engine that is about to stop. Raises what ``EngineUsageReports`` raises."""
        await self._usage.run_once(at_once=True)

    async def close(self) -> None:
        """Stop all tasks. Idempotent."""
        await self._tasks.close()
        await self._revocations.close()
