"""What one replica does with 1 to 1,000 adapters: throughput, time to first token by where the adapter lay, hit rates
of the tiers, the stall that loads impose on everyone, and fairness between tenants.

A real engine behind its own door, S3 and disk cache included, serves a small model of random weights and adapters of
mixed ranks, so that two cores can show the engine's bookkeeping at full rate. Traces are drawn from a seed.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click

from benchmarks.load import Answer, quantile, stream
from benchmarks.plot import draw_result
from benchmarks.store import embedded_s3
from benchmarks.tiny_model import make_tiny_model
from benchmarks.trace import Arrival, Popularity, TraceShape, draw, jain
from data_plane.engine.plugin import installed_engine
from tenora.base_model import materialise
from tests.fixtures.real_engine import RealEngine, real_engine

RANKS = (4, 8, 16)
POPULARITIES: tuple[tuple[Popularity, float], ...] = (("power", 0.3), ("zipf", 1.0))
TENANTS = 16
GOALS = {
    "throughput at 1000 adapters / at 5": 0.90,
    "TTFT p50 at twice the slots / at the slots": 3.0,
    "TTFT p99 of an adapter only in S3, s": 1.5,
}


@dataclass(frozen=True, kw_only=True)
class Served:
    """One request of a trace as it was served. ``tier`` is where its adapter lay when it came."""

    arrival: Arrival
    answer: Answer
    tier: str
    load_ms: int
    stall_ms: int
    late_s: float


class Replica:
    """The engine with names for its adapters, and a client."""

    def __init__(self, engine: RealEngine, names: list[str], session: aiohttp.ClientSession, seed: int) -> None:
        self.engine, self.names = engine, names
        self._session = session
        self._chance = random.Random(seed)
        self._key = engine.client.headers["Authorization"].removeprefix("Bearer ")

    async def ask(self, arrival: Arrival, *, late_s: float = 0.0) -> Served:
        """Send one request for an adapter, with a prompt that no other has."""
        prompt = [self._chance.randrange(100, 40_000) for _ in range(arrival.prompt_tokens)]
        answer = await stream(
            self._session, self.engine.url, self._key, model=self.names[arrival.adapter], prompt=prompt,
            output_tokens=arrival.output_tokens,
        )  # fmt: skip
        told = answer.told or {}
        return Served(
            arrival=arrival, answer=answer, tier=told.get("tier", "slot"), load_ms=told.get("load_ms", 0),
            stall_ms=told.get("stall_ms", 0), late_s=late_s,
        )  # fmt: skip

    async def replay(self, trace: list[Arrival]) -> list[Served]:
        """Send each request at its time, whether or not earlier ones are done (an open loop)."""
        started = time.perf_counter()

        async def one(arrival: Arrival) -> Served:
            await asyncio.sleep(max(0.0, arrival.at_s - (time.perf_counter() - started)))
            return await self.ask(arrival, late_s=time.perf_counter() - started - arrival.at_s)

        return list(await asyncio.gather(*(one(arrival) for arrival in trace)))

    async def saturate(self, trace: list[Arrival], *, concurrency: int) -> float:
        """Tokens a second with ``concurrency`` requests always in work (a closed loop)."""
        waiting, tokens, started = iter(trace), 0, time.perf_counter()

        async def client() -> None:
            nonlocal tokens
            for arrival in waiting:
                served = await self.ask(arrival)
                tokens += served.answer.output_tokens

        async with asyncio.TaskGroup() as clients:
            for _ in range(concurrency):
                clients.create_task(client())
        return tokens / (time.perf_counter() - started)


def summary(shape: TraceShape, served: list[Served], stalls_ms: list[float], seconds: float) -> dict[str, Any]:
    """What one trace showed. ``stalls_ms`` are the loads that held up a step while it ran."""
    by_tier: dict[str, list[float]] = defaultdict(list)
    attained: dict[int, list[bool]] = defaultdict(list)
    seen: set[int] = set()
    for each in served:
        first = each.arrival.adapter not in seen
        seen.add(each.arrival.adapter)
        by_tier[each.tier if first or each.tier != "slot" else "slot, again"].append(each.answer.first_token_s)
        attained[each.arrival.adapter % TENANTS].append(each.answer.first_token_s <= 1.0)
    all_first = [each.answer.first_token_s for each in served]
    return {
        "trace": asdict(shape),
        "requests": len(served),
        "adapters_asked_for": len(seen),
        "tokens_per_s": round(sum(each.answer.output_tokens for each in served) / seconds, 1),
        "first_token_s": {"p50": round(quantile(all_first, 0.5), 4), "p99": round(quantile(all_first, 0.99), 4)},
        "first_token_s_by_tier": {
            tier: {
                "requests": len(times),
                "p50": round(quantile(times, 0.5), 4),
                "p99": round(quantile(times, 0.99), 4),
            }
            for tier, times in sorted(by_tier.items())
        },
        "hit_rate": {
            tier: round(sum(each.tier == tier for each in served) / len(served), 4)
            for tier in ("slot", "memory", "disk", "store")
        },
        "stall": {
            "loads_in_step": len(stalls_ms),
            "ms_p50": round(quantile(stalls_ms, 0.5), 2),
            "ms_p99": round(quantile(stalls_ms, 0.99), 2),
            "share_of_time": round(sum(stalls_ms) / 1000 / seconds, 4),
        },
        "jain_of_tenants_within_1_s": round(jain([statistics.fmean(each) for each in attained.values()]), 4),
        "sent_late_p99_s": round(quantile([each.late_s for each in served], 0.99), 4),
    }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run, from the command line."""

    counts: tuple[int, ...]
    slots: int
    memory: int
    rate_per_s: float
    duration_s: float
    seed: int

    def trace(self, adapters: int, popularity: Popularity, skew: float, cv: float, *, rate_per_s: float) -> TraceShape:
        return TraceShape(
            adapters=adapters, popularity=popularity, skew=skew, rate_per_s=rate_per_s, cv=cv,
            duration_s=self.duration_s, prompt_tokens=(8, 48), output_tokens=(8, 32), seed=self.seed + adapters,
        )  # fmt: skip


async def run(plan: Plan, engine: RealEngine, names: list[str]) -> dict[str, Any]:
    """Everything the benchmark measures, in an order that leaves adapters only in S3 until their part comes."""
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        replica = Replica(engine, names, session, plan.seed)
        await replica.ask(Arrival(at_s=0, adapter=0, prompt_tokens=8, output_tokens=4))  # compiled code, warm sockets
        result: dict[str, Any] = {"store_first_hit": await only_in_store(replica)}
        result["traces"] = []
        for popularity, skew in POPULARITIES:
            for cv in (1.0, 4.0):
                for adapters in plan.counts:
                    shape = plan.trace(adapters, popularity, skew, cv, rate_per_s=plan.rate_per_s)
                    result["traces"].append(await trace_of(replica, shape))
                    click.echo(f"{adapters} adapters, {popularity} {skew}, cv {cv}: done", err=True)
        result["saturated"] = await saturated(replica, plan)
        result["cliff"] = await cliff(replica, plan)
    return result


async def trace_of(replica: Replica, shape: TraceShape) -> dict[str, Any]:
    """Replay one trace and look at the loads that the engine recorded meanwhile."""
    before = replica.engine.table()
    last = before.loads[-1].seq if before.loads else 0
    started = time.perf_counter()
    stalls: dict[int, float] = {}
    replaying = asyncio.create_task(replica.replay(draw(shape)))
    while not replaying.done():  # the table keeps the newest loads only, so they are read as they come
        await asyncio.wait([replaying], timeout=0.5)
        for load in replica.engine.table().loads:
            if load.seq > last and load.in_step:
                stalls[load.seq] = load.ms
    return summary(shape, replaying.result(), list(stalls.values()), time.perf_counter() - started)


async def only_in_store(replica: Replica) -> dict[str, Any]:
    """First requests of adapters that no tier of the replica has, one after another, taken from the end of the list."""
    served = [
        await replica.ask(Arrival(at_s=0, adapter=len(replica.names) - 1 - index, prompt_tokens=16, output_tokens=4))
        for index in range(100)
    ]
    times = [each.answer.first_token_s for each in served]
    return {
        "tiers": sorted({each.tier for each in served}),
        "p50_s": round(quantile(times, 0.5), 4),
        "p99_s": round(quantile(times, 0.99), 4),
        "load_ms_p50": quantile([each.load_ms for each in served], 0.5),
    }


async def saturated(replica: Replica, plan: Plan) -> list[dict[str, Any]]:
    """Closed loops over n adapters, uniformly asked for; twice each, in alternation, after every adapter was loaded."""
    seen: dict[int, list[float]] = defaultdict(list)
    counts = sorted({5, *plan.counts})
    for _ in range(2):
        for adapters in counts:
            shape = plan.trace(adapters, "power", 1.0, 1.0, rate_per_s=plan.rate_per_s * 2)
            seen[adapters].append(await replica.saturate(draw(shape), concurrency=32))
    return [
        {
            "adapters": adapters,
            "tokens_per_s": round(statistics.median(rates), 1),
            "rounds": [round(r, 1) for r in rates],
        }
        for adapters, rates in seen.items()
    ]


async def cliff(replica: Replica, plan: Plan) -> list[dict[str, Any]]:
    """Time to first token when as many adapters as slots, and twice as many, are asked for in turn."""
    rows = []
    for adapters in (plan.slots, 2 * plan.slots):
        shape = plan.trace(adapters, "power", 1.0, 1.0, rate_per_s=plan.rate_per_s)
        served = await replica.replay(draw(shape))
        times = [each.answer.first_token_s for each in served]
        rows.append(
            {"adapters": adapters, "p50_s": round(quantile(times, 0.5), 4), "p99_s": round(quantile(times, 0.99), 4)}
        )
    return rows


def judged(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each goal beside what was seen."""
    rate = {row["adapters"]: row["tokens_per_s"] for row in result["saturated"]}
    at_slots, at_twice = (row["p50_s"] for row in result["cliff"])
    seen = {
        "throughput at 1000 adapters / at 5": round(rate[max(rate)] / rate[5], 3),
        "TTFT p50 at twice the slots / at the slots": round(at_twice / at_slots, 3),
        "TTFT p99 of an adapter only in S3, s": result["store_first_hit"]["p99_s"],
    }
    return {
        goal: {"seen": seen[goal], "goal": bound, "met": seen[goal] >= bound if bound < 1 else seen[goal] <= bound}
        for goal, bound in GOALS.items()
    }


@click.command()
@click.option("--counts", default="1,4,16,64,256,1000", show_default=True, help="Adapters of each trace.")
@click.option("--slots", default=8, show_default=True)
@click.option("--memory", default=128, show_default=True, help="Adapters that host memory holds.")
@click.option("--rate", default=12.0, show_default=True, help="Requests a second of the open loops.")
@click.option("--duration", default=15.0, show_default=True, help="Seconds of each trace.")
@click.option("--seed", default=42, show_default=True)
@click.option("--home", type=click.Path(path_type=Path), default=Path(".tenora"), help="Where the base model is kept.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("multilora"), help="Writes OUT.json and OUT.svg.")
def main(counts: str, slots: int, memory: int, rate: float, duration: float, seed: int, home: Path, out: Path) -> None:
    """Measure one replica with up to a thousand adapters (about ten minutes on two cores)."""
    plan = Plan(
        counts=tuple(int(each) for each in counts.split(",")), slots=slots, memory=memory, rate_per_s=rate,
        duration_s=duration, seed=seed,
    )  # fmt: skip
    tokenizer_of = materialise(home, lambda text: click.echo(text, err=True))
    with tempfile.TemporaryDirectory(prefix="tenora-multilora-") as folder:
        work = Path(folder)
        checkpoint = make_tiny_model(work / "model", tokenizer_of, seed=seed)
        with (
            embedded_s3(work / "s3") as s3,
            real_engine(checkpoint, s3, work, slots=slots, memory=memory) as engine,
        ):
            click.echo("storing adapters", err=True)
            names = [
                engine.new_adapter(seed + index, rank=RANKS[index % len(RANKS)])
                for index in range(max(*plan.counts, 200))
            ]
            result = asyncio.run(run(plan, engine, names))
    device, version = installed_engine()
    result = {"engine": f"vLLM {version} on {device}", "plan": asdict(plan), "goals": judged(result), **result}
    out.with_suffix(".json").write_text(json.dumps(result, indent=1))
    draw_result(result, out.with_suffix(".svg"))
    for goal, row in result["goals"].items():
        click.echo(f"{goal}: {row['seen']} (goal {row['goal']}: {'met' if row['met'] else 'missed'})")
    click.echo(f"all of it: {out.with_suffix('.json')}, drawn in {out.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
