"""A replica under load: sends requests for adapters in an open or a closed loop, and reads the middleware's report on
each adapter load. It starts no engine.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.load import Answer, stream
from benchmarks.trace import TENANTS, Arrival
from data_plane.engine.residency import EngineResidency, read_residency


@dataclass(frozen=True, kw_only=True)
class Served:
    """One served request of a trace. ``tier`` is the tier of its adapter when the request arrived."""

    arrival: Arrival
    answer: Answer
    tier: str
    load_ms: int
    stall_ms: int
    late_s: float


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine's URL and key, and the folder of its residency table. ``words`` sends text, not token ids."""

    url: str
    key: str
    run_dir: Path
    words: bool = False

    def table(self) -> EngineResidency:
        """The current residency of adapters. Raises RuntimeError while there is no table."""
        if (table := read_residency(self.run_dir)) is None:
            raise RuntimeError(f"there is no residency table in {self.run_dir}")
        return table


class Replica:
    """A client of an engine with its middleware, real or a witness, and the names of its adapters."""

    def __init__(self, engine: Engine, names: list[str], session: aiohttp.ClientSession, seed: int) -> None:
        self.engine, self.names = engine, names
        self._session = session
        self._chance = random.Random(seed)

    async def ask(self, arrival: Arrival, *, late_s: float = 0.0) -> Served:
        """Send one request for an adapter, with a unique prompt.

        Raises RuntimeError when the engine does not report the adapter's tier.
        """
        numbers = [self._chance.randrange(100, 40_000) for _ in range(arrival.prompt_tokens)]
        prompt = " ".join(map(str, numbers)) if self.engine.words else numbers
        answer = await stream(
            self._session, self.engine.url, self.engine.key, model=self.names[arrival.adapter], prompt=prompt,
            output_tokens=arrival.output_tokens, tenant=f"tn_{arrival.adapter % TENANTS}",
        )  # fmt: skip
        if answer.adapter_load is None:
            raise RuntimeError("the engine did not report the adapter's tier")
        return Served(
            arrival=arrival, answer=answer, tier=answer.adapter_load["tier"], load_ms=answer.adapter_load["load_ms"],
            stall_ms=answer.adapter_load["stall_ms"], late_s=late_s,
        )  # fmt: skip

    async def replay(self, trace: list[Arrival]) -> list[Served]:
        """Send each request at its time, whether or not earlier requests are done (an open loop)."""
        started = time.perf_counter()

        async def one(arrival: Arrival) -> Served:
            await asyncio.sleep(max(0.0, arrival.at_s - (time.perf_counter() - started)))
            return await self.ask(arrival, late_s=time.perf_counter() - started - arrival.at_s)

        return list(await asyncio.gather(*(one(arrival) for arrival in trace)))

    async def saturate(self, trace: list[Arrival], *, concurrency: int, served: list[Served] | None = None) -> float:
        """Tokens per second at ``concurrency`` requests in flight (a closed loop); answers go to ``served``."""
        waiting, tokens, started = iter(trace), 0, time.perf_counter()

        async def client() -> None:
            nonlocal tokens
            for arrival in waiting:
                answered = await self.ask(arrival)
                tokens += answered.answer.output_tokens
                if served is not None:
                    served.append(answered)

        async with asyncio.TaskGroup() as clients:
            for _ in range(concurrency):
                clients.create_task(client())
        return tokens / (time.perf_counter() - started)
