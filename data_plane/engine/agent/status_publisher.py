"""Publishes a replica's status and its residency to Redis.

The agent decides the content. Fails open: without Redis, gateways only stop using this replica. A script refuses the
status of a second agent with the same id, so an id has one engine.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from core import redis_keys
from core.clock import now_ms
from core.contracts.replicas import ReplicaState, ReplicaStatus, Residency
from core.ids import is_id
from core.kv_pages import PAGE_TOKENS
from data_plane.engine.agent import metrics
from data_plane.engine.agent.batch_limit import BatchLimit
from data_plane.engine.agent.engine_client import EngineMetrics
from data_plane.engine.settings import ReplicaSettings

_log = structlog.get_logger()
_KERNEL_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SCRIPT: Final = Path(__file__).with_name("publish_status.lua")
_FAILURE_LASTS_MS: Final = 60_000
_LISTED_MS: Final = 120_000  # after its last status, a replica is in no list


class ReplicaIdTaken(Exception):
    """Another agent that lives has this replica's id."""


@contextlib.contextmanager
def locked_run_dir(settings: ReplicaSettings) -> Iterator[str]:
    """Hold this replica's run folder alone, and give the folder's id: a status with the same one is of a dead agent.
    What dead agents with generated ids left is removed. Raises ReplicaIdTaken while another agent holds the folder.

    The id is the lock itself: its file on the kernel that keeps it. A copy of the folder is another file, or is on
    another kernel.
    """
    lock = settings.run_dir.with_suffix(".lock")  # beside the folder, which the engine empties
    lock.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with lock.with_name("replicas.lock").open("a") as alone:  # no lock is removed between its creation and its use
            fcntl.flock(alone, fcntl.LOCK_EX)
            file = held.enter_context(lock.open("a"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReplicaIdTaken(f"another process holds {lock}") from None
            _remove_dead(lock.parent)
        status = os.fstat(file.fileno())
        yield f"{_KERNEL_BOOT.read_text().strip()}:{status.st_dev}:{status.st_ino}"


def _remove_dead(folder: Path) -> None:
    """Remove the run folders and locks of generated ids whose agents are dead: no agent has such an id again."""
    for lock in folder.glob("rep_*.lock"):
        if is_id(lock.stem, "rep"):
            with contextlib.suppress(OSError), lock.open("a") as file:  # BlockingIOError: its agent lives
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()


class StatusPublisher:
    """Writes the Redis keys of one replica. ``url`` is the engine's address for gateways."""

    def __init__(self, settings: ReplicaSettings, redis: Redis, *, url: str, boot_id: str, run_dir_id: str) -> None:
        self._settings = settings
        self._script = redis.register_script(_SCRIPT.read_text())
        self._url = url
        self._boot_id = boot_id
        self._run_dir_id = run_dir_id
        self._ttl_ms = int(settings.status_ttl_s * 1000)
        self._written_version = 0
        self._exported: EngineMetrics | None = None
        self._batch_limit = BatchLimit(settings.engine_sequences, settings.batch_token_ms_max / 1000)
        metrics.INFO.labels(settings.pool, settings.base_model, str(settings.engine_rank_max)).set(1)

    async def publish(
        self,
        state: ReplicaState,
        engine: EngineMetrics | None = None,
        residency: Residency | None = None,
        *,
        reason: str = "",
    ) -> bool | None:
        """Write everything at once; ``engine`` is None before and after its life. Returns whether an admin requested a
        drain, None without Redis. Raises ReplicaIdTaken, and then nothing is written.
        """
        status = self._status(state, engine, residency, reason)
        self._export(status, engine)
        changed = residency is not None and residency.version != self._written_version
        reply = await self._run(
            msgspec.json.encode(status),
            msgspec.json.encode(residency) if changed else b"",
            lasts_ms=max(self._ttl_ms, _FAILURE_LASTS_MS) if state == "failed" else self._ttl_ms,
        )
        if reply is None:
            return None
        is_there, drain_requested = reply
        # A residency that has expired meanwhile is written again the next time.
        self._written_version = status.residency_version if is_there else 0
        return bool(drain_requested)

    def _export(self, status: ReplicaStatus, engine: EngineMetrics | None) -> None:
        metrics.READY.set(status.state == "ready")
        metrics.PAGES.set(status.pages_total)
        metrics.FREE_PAGES.set(status.pages_free)
        metrics.RUNNING.set(status.running_requests)
        metrics.WAITING.set(status.waiting_requests)
        metrics.BATCH_REQUESTS_MAX.set(status.batch_requests_max)
        if engine is None:
            return
        before, self._exported = self._exported or engine, engine
        metrics.ENGINE_TOKENS.labels("prompt").inc(max(0, engine.prompt_tokens - before.prompt_tokens))
        metrics.ENGINE_TOKENS.labels("generated").inc(max(0, engine.generation_tokens - before.generation_tokens))
        metrics.PREEMPTIONS.inc(max(0, engine.preemptions - before.preemptions))

    async def withdraw(self) -> None:
        """Remove this replica's keys, so that gateways stop using it now instead of when its status expires."""
        with contextlib.suppress(ReplicaIdTaken):
            await self._run(b"", b"", lasts_ms=0)

    async def _run(self, status: bytes, residency: bytes, *, lasts_ms: int) -> tuple[int, int] | None:
        """The script's reply, None without Redis. Raises ReplicaIdTaken."""
        replica_id = self._settings.replica_id
        keys = (
            redis_keys.replica(replica_id),
            redis_keys.replica_residency(replica_id),
            redis_keys.REPLICAS,
            redis_keys.replica_drain(replica_id),
        )
        arguments = (
            self._boot_id,
            self._run_dir_id,
            status,
            residency,
            replica_id,
            lasts_ms,
            _LISTED_MS,
            redis_keys.DRAIN_LASTS_S * 1000,
        )
        try:
            reply = await self._script(keys, arguments)
        except (RedisError, OSError) as error:
            _log.warning("status publish failed", error=repr(error))
            return None
        if isinstance(reply, bytes):
            raise ReplicaIdTaken(f"another agent that lives has this id: {reply.decode(errors='replace')}")
        is_there, drain_requested = reply
        return is_there, drain_requested

    def _status(
        self, state: ReplicaState, engine: EngineMetrics | None, residency: Residency | None, reason: str
    ) -> ReplicaStatus:
        settings = self._settings
        if engine is not None:
            self._batch_limit.observe(engine, time.monotonic())
        block_tokens = settings.engine_block_tokens if engine is None else engine.block_tokens
        pages_total = 0 if engine is None else engine.blocks * block_tokens // PAGE_TOKENS
        return ReplicaStatus(
            id=settings.replica_id,
            url=self._url,
            base_model=settings.base_model,
            state=state,
            boot_id=self._boot_id,
            block_tokens=block_tokens,
            pages_total=pages_total,
            pages_free=0 if engine is None else round(pages_total * (1 - engine.kv_used)),
            slots=settings.engine_slots,
            running_requests=0 if engine is None else engine.running,
            waiting_requests=0 if engine is None else engine.waiting,
            heartbeat_ms=now_ms(),
            counted_tokens=0 if engine is None else engine.prompt_tokens + engine.generation_tokens,
            rank_max=settings.engine_rank_max,
            memory_adapters=settings.memory_adapters,
            residency_version=0 if residency is None else residency.version,
            reason=reason,
            node=settings.node,
            copy=settings.replica_copy,
            run_dir_id=self._run_dir_id,
            pool=settings.pool,
            revision=settings.pool_revision,
            sequences=settings.engine_sequences,
            batch_requests_max=self._batch_limit.requests,
        )
