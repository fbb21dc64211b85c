"""Measures one replica with 1 to 1,000 adapters: throughput, time to first token by the adapter's tier, hit rates of
the tiers, the stall that adapter loads cause for all requests, and fairness between tenants.

A real engine with its middleware, S3 and disk cache serves a small model with random weights and adapters of mixed
ranks, so that two cores are enough to run the engine's bookkeeping at full rate. Traces are drawn from a seed.
"""

import asyncio
import contextlib
import json
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import click

from benchmarks.load import quantile
from benchmarks.lora.replica import Engine, Replica, Served
from benchmarks.lora.store import embedded_s3
from benchmarks.lora.tiny_model import make_tiny_model
from benchmarks.trace import TENANTS, Arrival, Popularity, TraceShape, draw, jain
from core.ids import new_id
from data_plane.engine.plugin import installed_engine
from tenora.stack.base_model import materialize
from tests.fixtures.engine.real_engine import KEY, real_engine
from tests.fixtures.processes import ENGINE_KEY, witness

RANKS = (4, 8, 16)
# The modules of S-LoRA. An adapter then has 0.4 % of this model's weights.
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
AT_ONCE = 32
SATURATED_ROUNDS, SATURATED_REQUESTS, SATURATED_OUTPUT_TOKENS = 7, 256, (8, 128)
POPULARITIES: tuple[tuple[Popularity, float], ...] = (("power", 0.3), ("zipf", 1.0))
PROMPT_TOKENS, OUTPUT_TOKENS = (8, 48), (8, 32)
TIERS: Final = ("slot", "memory", "disk", "store")
GOALS: Final = {
    "throughput at the most adapters / at 5": 0.90,
    "TTFT p50 at twice the slots / at the slots": 3.0,
    "TTFT p99 of an adapter only in S3, s": 1.5,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of a run, from the command line."""

    counts: tuple[int, ...]
    slots: int
    memory: int
    rate_per_s: float
    duration_s: float
    seed: int

    @property
    def adapters(self) -> int:
        """Adapters to create: enough for the largest trace, and for a hundred single requests before the traces."""
        return max(200, *self.counts)

    def trace(self, adapters: int, popularity: Popularity, skew: float, cv: float) -> TraceShape:
        return TraceShape(
            adapters=adapters, popularity=popularity, skew=skew, rate_per_s=self.rate_per_s, cv=cv,
            duration_s=self.duration_s, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS,
            seed=self.seed + adapters,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def client_of(plan: Plan, engine: Engine, names: list[str]) -> AsyncIterator[Replica]:
    """The replica with a client, after a first answer that compiles code and warms the sockets."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        replica = Replica(engine, names, session, plan.seed)
        await replica.ask(Arrival(at_s=0, adapter=0, prompt_tokens=8, output_tokens=4))
        yield replica


async def with_few_slots(plan: Plan, engine: Engine, names: list[str]) -> dict[str, Any]:
    """All measurements of tiers, ordered so that adapters stay only in S3 until their own measurement."""
    async with client_of(plan, engine, names) as replica:
        result: dict[str, Any] = {"store_first_hit": await only_in_store(replica), "traces": []}
        for popularity, skew in POPULARITIES:
            for cv in (1.0, 4.0):
                for adapters in plan.counts:
                    shape = plan.trace(adapters, popularity, skew, cv)
                    result["traces"].append(await trace_of(replica, shape))
                    click.echo(f"{adapters} adapters, {popularity} {skew}, cv {cv}: done", err=True)
        result["cliff"] = await cliff(replica, plan)
    return result


async def with_ample_slots(plan: Plan, engine: Engine, names: list[str]) -> dict[str, Any]:
    """Throughput when every request in flight has a slot and host memory holds all adapters."""
    async with client_of(plan, engine, names) as replica:
        return {"saturated": await saturated(replica, plan)}


async def trace_of(replica: Replica, shape: TraceShape) -> dict[str, Any]:
    """Replay one trace and collect the adapter loads that the engine records during it."""
    before = replica.engine.table()
    last = before.loads[-1].seq if before.loads else 0
    started = time.perf_counter()
    stalls: dict[int, float] = {}
    replaying = asyncio.create_task(replica.replay(draw(shape)))
    while not replaying.done():  # the table keeps only the newest loads, so poll it
        await asyncio.wait([replaying], timeout=0.5)
        for load in replica.engine.table().loads:
            if load.seq > last and load.in_step:
                stalls[load.seq] = load.ms
    return summary(shape, replaying.result(), list(stalls.values()), time.perf_counter() - started)


async def only_in_store(replica: Replica) -> dict[str, Any]:
    """Request adapters that are in no tier of the replica, one after another from the end of the list."""
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
    """Closed loops over n adapters round-robin, in several rounds after every adapter was loaded once.

    Answers are longer than in the traces, but a quarter as long as S-LoRA's, where each load is spread over 260 tokens
    on average.
    """
    seen: dict[int, list[float]] = defaultdict(list)
    counts = sorted({5, *plan.counts})
    await replica.saturate(in_turn(plan, max(counts), max(counts)), concurrency=AT_ONCE)
    for _ in range(SATURATED_ROUNDS):
        for adapters in counts:
            requests = in_turn(plan, adapters, SATURATED_REQUESTS, output_tokens=SATURATED_OUTPUT_TOKENS)
            seen[adapters].append(await replica.saturate(requests, concurrency=AT_ONCE))
    return [
        {
            "adapters": adapters, "tokens_per_s": round(statistics.median(rates), 1),
            "rounds": [round(each, 1) for each in rates],
        }
        for adapters, rates in seen.items()
    ]  # fmt: skip


async def cliff(replica: Replica, plan: Plan) -> list[dict[str, Any]]:
    """Time to first token in closed loops, with as many adapters as slots and with twice as many.

    With twice as many, half of the requests in flight wait for a slot at any time.
    """
    rows = []
    for adapters in (plan.slots, 2 * plan.slots):
        await replica.saturate(in_turn(plan, adapters, 64), concurrency=AT_ONCE)  # untimed: loads the adapters
        served: list[Served] = []
        await replica.saturate(in_turn(plan, adapters, 400), concurrency=AT_ONCE, served=served)
        times = [each.answer.first_token_s for each in served]
        rows.append(
            {"adapters": adapters, "p50_s": round(quantile(times, 0.5), 4), "p99_s": round(quantile(times, 0.99), 4)}
        )
    return rows


def in_turn(
    plan: Plan, adapters: int, requests: int, *, output_tokens: tuple[int, int] = OUTPUT_TOKENS
) -> list[Arrival]:
    """Requests for one adapter after another in a shuffled order.

    The lengths are the same for any number of adapters: the last requests of a closed loop affect its throughput
    strongly.
    """
    chance = random.Random(plan.seed)
    order = random.Random(plan.seed + adapters).sample(range(adapters), adapters)
    return [
        Arrival(
            at_s=0, adapter=order[index % adapters], prompt_tokens=chance.randint(*PROMPT_TOKENS),
            output_tokens=chance.randint(*output_tokens),
        )
        for index in range(requests)
    ]  # fmt: skip


@contextlib.contextmanager
def real(plan: Plan, home: Path, work: Path) -> Iterator[tuple[Engine, list[str], str]]:
    """A real engine with a tiny model, and its adapters in a real S3 store."""
    tokenizer_of = materialize(home, lambda text: click.echo(text, err=True))
    checkpoint = make_tiny_model(work / "model", tokenizer_of, seed=plan.seed)
    with (
        embedded_s3(work / "s3") as s3,
        real_engine(checkpoint, s3, work, slots=plan.slots, memory=plan.memory) as engine,
    ):
        click.echo("uploading adapters to the store", err=True)
        names = [
            engine.new_adapter(plan.seed + index, rank=RANKS[index % len(RANKS)], modules=MODULES)
            for index in range(plan.adapters)
        ]
        device, version = installed_engine()
        yield Engine(url=engine.url, key=KEY, run_dir=engine.settings.run_dir), names, f"vLLM {version} on {device}"


@contextlib.contextmanager
def modelled(plan: Plan, work: Path) -> Iterator[tuple[Engine, list[str], str]]:
    """The witness: no weights, with published costs of an 8B model on a GPU at rank 64 (100 MB per adapter)."""
    costs = {"store-load-s": 0.6, "disk-load-s": 0.05, "slot-load-s": 0.035, "token-interval-s": 0.012}
    options = {"slots": plan.slots, "memory-adapters": plan.memory, "run-dir": work / "run", **costs}
    with witness(work, "redis://127.0.0.1:1", silent=True, **options) as process:
        names = [f"{new_id('ad')}@{secrets.token_hex(32)}" for _ in range(plan.adapters)]
        yield Engine(url=process.url, key=ENGINE_KEY, run_dir=work / "run", words=True), names, f"witness, {costs}"


def summary(shape: TraceShape, served: list[Served], stalls_ms: list[float], seconds: float) -> dict[str, Any]:
    """The summary of one trace. ``stalls_ms`` are the adapter loads that stalled a step during the trace."""
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
        "hit_rate": {tier: round(sum(each.tier == tier for each in served) / len(served), 4) for tier in TIERS},
        "stall": {
            "loads_in_step": len(stalls_ms),
            "ms_p50": round(quantile(stalls_ms, 0.5), 2),
            "ms_p99": round(quantile(stalls_ms, 0.99), 2),
            "share_of_time": round(sum(stalls_ms) / 1000 / seconds, 4),
        },
        "jain_of_tenants_within_1_s": round(jain([statistics.fmean(each) for each in attained.values()]), 4),
        "sent_late_p99_s": round(quantile([each.late_s for each in served], 0.99), 4),
    }


def judged(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each goal with the measured value."""
    rounds = {row["adapters"]: row["rounds"] for row in result["saturated"]}
    # Each ratio is of two loads that ran close together in time.
    ratios = [most / five for most, five in zip(rounds[max(rounds)], rounds[5], strict=True)]
    at_slots, at_twice = (row["p50_s"] for row in result["cliff"])
    seen = {
        "throughput at the most adapters / at 5": round(statistics.median(ratios), 3),
        "TTFT p50 at twice the slots / at the slots": round(at_twice / at_slots, 3),
        "TTFT p99 of an adapter only in S3, s": result["store_first_hit"]["p99_s"],
    }
    return {
        goal: {"seen": seen[goal], "goal": bound, "met": seen[goal] >= bound if bound < 1 else seen[goal] <= bound}
        for goal, bound in GOALS.items()
    }


def draw_result(result: dict[str, Any], path: Path) -> None:
    """Time to first token and hit rates by number of adapters, one line per kind of trace, as SVG."""
    import matplotlib as mpl  # late: a test of the figures needs no chart

    mpl.use("svg")  # this backend needs no display
    from matplotlib import pyplot as plt

    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in result["traces"]:
        shape = row["trace"]
        kinds.setdefault(f"{shape['popularity']} {shape['skew']}, cv {shape['cv']:g}", []).append(row)
    figure, (times, tiers) = plt.subplots(1, 2, figsize=(11, 4))
    for name, rows in kinds.items():
        counts = [row["trace"]["adapters"] for row in rows]
        (line,) = times.plot(counts, [row["first_token_s"]["p50"] for row in rows], marker="o", label=name)
        times.plot(counts, [row["first_token_s"]["p99"] for row in rows], ls=":", color=line.get_color())
    times.set(xscale="log", yscale="log", xlabel="adapters", ylabel="seconds", title="TTFT: p50, and p99 dotted")
    times.legend(fontsize=8)
    rows = next(iter(kinds.values()))
    counts, bottom = [str(row["trace"]["adapters"]) for row in rows], [0.0] * len(rows)
    for tier in TIERS:
        shares = [row["hit_rate"][tier] for row in rows]
        tiers.bar(counts, shares, bottom=bottom, label=tier)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    tiers.set(xlabel="adapters", ylabel="share of requests", title=f"Where the adapter lay ({next(iter(kinds))})")
    tiers.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


@click.command()
@click.option("--counts", default="1,4,16,64,256,1000", show_default=True, help="Number of adapters in each trace.")
@click.option("--slots", default=8, show_default=True)
@click.option("--memory", default=128, show_default=True, help="Adapters that fit in host memory.")
@click.option("--rate", "rate_per_s", default=12.0, show_default=True, help="Requests per second of the traces.")
@click.option("--duration", "duration_s", default=15.0, show_default=True, help="Seconds of each trace.")
@click.option("--seed", default=42, show_default=True)
@click.option("--witness", "use_witness", is_flag=True, help="A replica with modelled costs instead of a real engine.")
@click.option("--home", type=click.Path(path_type=Path), default=Path(".tenora"), help="Where the base model is kept.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("multilora"), help="Writes OUT.json and OUT.svg.")
def main(counts: str, use_witness: bool, home: Path, out: Path, **numbers: Any) -> None:
    """Measure one replica with up to a thousand adapters (about ten minutes on two cores)."""
    plan = Plan(counts=tuple(int(each) for each in counts.split(",")), **numbers)
    with tempfile.TemporaryDirectory(prefix="tenora-multilora-") as folder:
        work = Path(folder)
        result: dict[str, Any] = {}
        ample = replace(plan, slots=AT_ONCE, memory=plan.adapters)
        for part, measure in ((plan, with_few_slots), (ample, with_ample_slots)):
            folder_of = work / f"{part.slots}-slots"
            folder_of.mkdir()
            with modelled(part, folder_of) if use_witness else real(part, home, folder_of) as (engine, names, what):
                result |= asyncio.run(measure(part, engine, names))
    result = {
        "engine": what,
        "plan": asdict(plan),
        "ample": asdict(ample),
        "adapter": {"ranks": RANKS, "modules": MODULES},
        "goals": judged(result),
        **result,
    }
    out.with_suffix(".json").write_text(json.dumps(result, indent=1))
    draw_result(result, out.with_suffix(".svg"))
    for goal, row in result["goals"].items():
        click.echo(f"{goal}: {row['seen']} (goal {row['goal']}: {'met' if row['met'] else 'missed'})")
    click.echo(f"all results: {out.with_suffix('.json')}, chart: {out.with_suffix('.svg')}")
    sys.exit(0 if all(row["met"] for row in result["goals"].values()) else 1)


if __name__ == "__main__":
    main()
