"""A replica under load: requests for adapters, sent at their times or as fast as they are answered, and the report of
its middleware on each adapter's load.
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
    """One request of a trace as it was served. ``tier`` is where its adapter lay when it came."""

    arrival: Arrival
    answer: Answer
    tier: str
    load_ms: int
    stall_ms: int
    late_s: float


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An engine's URL and key, and the folder of its residency table. ``words`` makes prompts of text."""

    url: str
    key: str
    run_dir: Path
    words: bool = False

    def table(self) -> EngineResidency:
        """Where adapters lie now. Raises RuntimeError while there is no table."""
        if (table := read_residency(self.run_dir)) is None:
            raise RuntimeError(f"there is no residency table in {self.run_dir}")
        return table


class Replica:
    """An engine behind its middleware, real or a witness, with the names of its adapters, and a client."""

    def __init__(self, engine: Engine, names: list[str], session: aiohttp.ClientSession, seed: int) -> None:
        self.engine, self.names = engine, names
        self._session = session
        self._chance = random.Random(seed)

    async def ask(self, arrival: Arrival, *, late_s: float = 0.0) -> Served:
        """Send one request for an adapter, with a prompt that no other has."""
        numbers = [self._chance.randrange(100, 40_000) for _ in range(arrival.prompt_tokens)]
        prompt = " ".join(map(str, numbers)) if self.engine.words else numbers
        answer = await stream(
            self._session, self.engine.url, self.engine.key, model=self.names[arrival.adapter], prompt=prompt,
            output_tokens=arrival.output_tokens, tenant=f"tn_{arrival.adapter % TENANTS}",
        )  # fmt: skip
        if answer.told is None:
            raise RuntimeError("the engine did not report the adapter's tier")
        return Served(
            arrival=arrival, answer=answer, tier=answer.told["tier"], load_ms=answer.told["load_ms"],
            stall_ms=answer.told["stall_ms"], late_s=late_s,
        )  # fmt: skip

    async def replay(self, trace: list[Arrival]) -> list[Served]:
        """Send each request at its time, whether or not earlier ones are done (an open loop)."""
        started = time.perf_counter()

        async def one(arrival: Arrival) -> Served:
            await asyncio.sleep(max(0.0, arrival.at_s - (time.perf_counter() - started)))
            return await self.ask(arrival, late_s=time.perf_counter() - started - arrival.at_s)

        return list(await asyncio.gather(*(one(arrival) for arrival in trace)))

    async def saturate(self, trace: list[Arrival], *, concurrency: int, served: list[Served] | None = None) -> float:
        """Tokens a second with ``concurrency`` requests always in work (a closed loop); answers go to ``served``."""
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
