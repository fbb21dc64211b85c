"""The exchange of an answer in one piece: nothing comes before everything, so the replica's other signs are watched."""

import asyncio

from data_plane.gateway import metrics
from data_plane.gateway.placing.replica_signs import ReplicaSigns
from data_plane.gateway.relaying.engine_line import Answer
from data_plane.gateway.relaying.exchange import Attempt, Exchange, Relayed
from data_plane.gateway.relaying.upstream import Upstream
from data_plane.gateway.settings import GatewaySettings
from data_plane.gateway.settling.meter import AdapterLoad, Counts
from data_plane.gateway.surface import completion
from data_plane.gateway.surface.body import ID_PREFIXES
from data_plane.gateway.surface.client import Client
from data_plane.gateway.surface.sse import StreamBroken


class WholeExchange(Exchange):
    """An answer in one piece."""

    def __init__(
        self, upstream: Upstream, limits: GatewaySettings, client: Client, attempt: Attempt, signs: ReplicaSigns
    ) -> None:
        super().__init__(upstream, limits, client, attempt)
        self._signs = signs
        self._raw = bytearray()
        self._answer: completion.Answer | None = None
        self._load: AdapterLoad | None = None

    def _first_deadline(self) -> float:
        return self._attempt.deadline  # nothing comes before everything

    async def run(self) -> Relayed:
        """The exchange, given up when the engine counts no token any more."""
        watching = asyncio.create_task(self._watch_engine())
        try:
            with self._signs.watch(self._attempt.replica):
                return await super().run()
        finally:
            watching.cancel()

    async def _watch_engine(self) -> None:
        while True:
            await asyncio.sleep(self._signs.poll_s)
            if self._signs.silent_s(self._attempt.replica) >= self._limits.replica_silent_s:
                break
        metrics.replicas_silent.inc()
        self._time_out()

    @property
    def load(self) -> AdapterLoad | None:
        return self._load

    def counts(self) -> Counts:
        return Counts() if self._answer is None else completion.counts(self._answer, sequences=self._attempt.call.n)

    async def _exchange(self, answer: Answer) -> Relayed:
        await self._read_to_end(answer)
        assert self._answer is not None
        if completion.is_aborted(self._answer):
            raise StreamBroken("the engine aborted the request")
        counts = self.counts()
        self._attempt.on_first_byte()
        response_id = ID_PREFIXES[self._attempt.call.kind] + self._attempt.request_id
        return Relayed(
            "done",
            counts,
            ending=completion.for_caller(
                self._answer,
                counts,
                response_id=response_id,
                shown_name=self._attempt.shown_name,
                tier_shown=self._attempt.call.tier_asked,
            ),
        )

    async def _read_to_end(self, answer: Answer) -> None:
        while data := await answer.some():
            self._raw += data
            if len(self._raw) > self._limits.response_max_bytes:
                raise StreamBroken(f"the answer is larger than {self._limits.response_max_bytes} bytes")
        self._answer = completion.decode(bytes(self._raw))
        self._load = completion.load(answer.headers.get("x-tenora-load"))
