"""Asks engines how far they have got with answers that come in one piece, so that these have checkpoints too.

Nothing of such an answer reaches the gateway before all of it does. Fails open: while an engine does not answer, the
last counts remain.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator

from core.contracts.replicas import ReplicaStatus
from core.contracts.usage import GenerationProgress, SequenceCounts
from data_plane.gateway.api.openai_request import Kind
from data_plane.gateway.api.token_counts import TokenCounts
from data_plane.gateway.upstream.engine_client import EngineClient, external_id

_IDS_MAX = 500  # in one call


class UnaryRun:
    """One request on one engine, and what the engine has generated for it so far."""

    def __init__(self) -> None:
        self._sequences: list[SequenceCounts] = []
        self.kv_page_ms: int | None = None

    def record(self, progress: GenerationProgress) -> None:
        """A report on all sequences."""
        self._sequences = progress.sequences
        if progress.kv_page_ms is not None:
            self.kv_page_ms = progress.kv_page_ms

    def counts(self) -> TokenCounts:
        """Tokens so far."""
        counts = TokenCounts.of(self._sequences)
        counts.kv_page_ms = self.kv_page_ms
        return counts


class UnaryProgress:
    """The runs of this process, by replica."""

    def __init__(self, engines: EngineClient, *, poll_s: float) -> None:
        self._engines = engines
        self._poll_s = poll_s
        self._runs: dict[str, dict[str, UnaryRun]] = defaultdict(dict)
        self._replicas: dict[str, ReplicaStatus] = {}

    @contextlib.contextmanager
    def watch(self, replica: ReplicaStatus, kind: Kind, request_id: str) -> Iterator[UnaryRun]:
        """Ask for the progress of this request while the context is open."""
        run, name, key = UnaryRun(), external_id(kind, request_id), f"{replica.id}/{replica.boot_id}"
        self._replicas[key] = replica
        self._runs[key][name] = run
        try:
            yield run
        finally:
            del self._runs[key][name]
            if not self._runs[key]:
                del self._runs[key], self._replicas[key]

    async def run_forever(self) -> None:
        """Ask every ``poll_s``, all engines at the same time. Never returns."""
        while True:
            await asyncio.sleep(self._poll_s)
            await asyncio.gather(*(self._refresh(key) for key in list(self._runs)))

    async def _refresh(self, key: str) -> None:
        replica, names = self._replicas[key], list(self._runs[key])
        for first in range(0, len(names), _IDS_MAX):
            found = await self._engines.progress(replica, names[first : first + _IDS_MAX])
            runs = self._runs.get(key, {})
            for name, progress in found.items():
                if (run := runs.get(name)) is not None:
                    run.record(progress)
