"""Measures the overhead of adapters compared with the base model: throughput and time to first token of 1, 2, 4 and 8
adapters at concurrency 1, 8 and 32, as ratios to the base model on the same engine in the same run.

Rounds are shuffled and every ratio is computed within its round, so that a slow machine or a slow minute cancels out.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click

from benchmarks.load import Load, closed_loop
from benchmarks.lora.store import embedded_s3
from data_plane.engine.plugin import ACTIVATION, installed_engine
from tenora.stack.base_model import materialize
from tests.fixtures.engine.real_engine import BASE, RealEngine, real_engine

CONCURRENCIES = (1, 8, 32)
GOALS = {(adapters, at_once): 0.85 for adapters in (1, 2, 4, 8) for at_once in (1, 8)} | {(1, 32): 0.95, (8, 32): 0.90}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of every request. The same seed gives the same prompts and weights."""

    rounds: int
    prompt_tokens: int
    output_tokens: int
    rank: int
    seed: int
    counts: tuple[int, ...]
    concurrencies: tuple[int, ...] = CONCURRENCIES

    def requests(self, concurrency: int) -> int:
        """Two waves of requests, but at least six."""
        return max(6, 2 * concurrency)


async def measure(engine: RealEngine, names: list[str], shape: Shape) -> dict[tuple[int, int], list[Load]]:
    """Loads by (adapters, concurrency); 0 adapters is the base model. One round is one load of each."""
    loads: dict[tuple[int, int], list[Load]] = {}
    chance, key = random.Random(shape.seed), engine.settings.engine_key.get_secret_value()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def load(adapters: int, concurrency: int) -> Load:
            models = names[:adapters] or [BASE]
            requests = [
                (models[index % len(models)], [chance.randrange(100, 40_000) for _ in range(shape.prompt_tokens)])
                for index in range(shape.requests(concurrency))
            ]
            return await closed_loop(
                session, engine.url, key, requests, concurrency=concurrency, output_tokens=shape.output_tokens
            )

        await load(max(shape.counts), 8)  # load the adapters into slots before the timed loads
        await load(0, 8)
        for done in range(shape.rounds):
            for concurrency in shape.concurrencies:
                order = [0, *shape.counts]
                chance.shuffle(order)
                for adapters in order:
                    loads.setdefault((adapters, concurrency), []).append(await load(adapters, concurrency))
            click.echo(f"round {done + 1} of {shape.rounds} done", err=True)
    return loads


def ratios(loads: dict[tuple[int, int], list[Load]], shape: Shape) -> list[dict[str, Any]]:
    """One row for each number of adapters and concurrency: medians over rounds of the ratios within each round."""
    rows = []
    for concurrency in shape.concurrencies:
        base = loads[0, concurrency]
        for adapters in (0, *shape.counts):
            mine = loads[adapters, concurrency]
            pairs = list(zip(mine, base, strict=True))
            rows.append(
                {
                    "adapters": adapters,
                    "concurrency": concurrency,
                    "tokens_per_s": round(statistics.median(load.tokens_per_s for load in mine), 1),
                    "first_token_p50_s": round(statistics.median(load.first_token_s(0.5) for load in mine), 3),
                    "throughput_ratio": round(statistics.median(a.tokens_per_s / b.tokens_per_s for a, b in pairs), 3),
                    "first_token_ratio": round(
                        statistics.median(a.first_token_s(0.5) / b.first_token_s(0.5) for a, b in pairs), 3
                    ),
                    "throughput_ratios": sorted(round(a.tokens_per_s / b.tokens_per_s, 3) for a, b in pairs),
                    "goal": GOALS.get((adapters, concurrency)),
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A text table with one line per row."""
    lines = ["adapters  at a time  tokens/s  of base  goal   TTFT p50  of base"]
    for row in rows:
        goal = f"{row['goal']:.2f}" if row["goal"] else "    "
        lines.append(
            f"{row['adapters'] or 'base':>8}  {row['concurrency']:>9}  {row['tokens_per_s']:>8.1f}  "
            f"{row['throughput_ratio']:>7.2f}  {goal}  {row['first_token_p50_s']:>7.3f}s  "
            f"{row['first_token_ratio']:>7.2f}"
        )
    return "\n".join(lines)


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="Checkpoint; the one-machine base model if not given.")
@click.option("--home", type=click.Path(path_type=Path), default=Path(".tenora"), help="Folder of that base model.")
@click.option("--rounds", default=5, show_default=True, help="Loads of each kind.")
@click.option("--rank", default=8, show_default=True)
@click.option("--prompt-tokens", default=32, show_default=True)
@click.option("--output-tokens", default=48, show_default=True)
@click.option("--seed", default=20, show_default=True)
@click.option("--stock", is_flag=True, help="Measure vLLM's own LoRA operations instead of Tenora's.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write all results to this file.")
def main(model: Path | None, home: Path, stock: bool, json_path: Path | None, **numbers: int) -> None:
    """Measure the overhead of adapters compared with the base model (about ten minutes on two cores)."""
    shape = Shape(counts=(1, 8) if stock else (1, 2, 4, 8), concurrencies=CONCURRENCIES, **numbers)
    checkpoint = model or materialize(home, lambda text: click.echo(text, err=True))
    slots = max(shape.counts)
    # "stock" names no device, so the plugin replaces no operations.
    environment = {ACTIVATION: "stock"} if stock else {}
    with (
        tempfile.TemporaryDirectory(prefix="tenora-lora-tax-") as folder,
        embedded_s3(Path(folder, "s3")) as s3,
        real_engine(checkpoint, s3, Path(folder), slots=slots, memory=slots, environment=environment) as engine,
    ):
        names = [engine.new_adapter(shape.seed + index, rank=shape.rank) for index in range(slots)]
        rows = ratios(asyncio.run(measure(engine, names, shape)), shape)
    device, version = installed_engine()
    click.echo(table(rows))
    result = {
        "operations": "stock" if stock else "tenora",
        "engine": f"vLLM {version} on {device}",
        "shape": asdict(shape),
        "rows": rows,
    }
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    missed = [row for row in rows if row["goal"] and row["throughput_ratio"] < row["goal"]]
    sys.exit(1 if missed and not stock else 0)


if __name__ == "__main__":
    main()
