"""Measures the cost function of a replica: drives an engine over prompt lengths, concurrency and numbers of adapters,
reads what its step meter counted in short windows, and fits the step time with its held-out error.

Prefill and decoding rise together in ordinary traffic, so that only a sweep can tell their costs apart. By default it
starts an engine of its own. With ``--url`` it drives a running replica, whose agent reports the same windows to
billing; ``python -m billing fit-costs`` then fits and stores what billing has.
"""

import asyncio
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec

from benchmarks.load import stream
from benchmarks.lora.store import embedded_s3
from benchmarks.lora.tiny_model import make_tiny_model
from billing.costs.step_model import (
    PS_PER_MS,
    UNFITTED,
    Observation,
    StepWeights,
    StepWork,
    described,
    fit,
    quality,
    split,
)
from data_plane.engine.plugin import installed_engine
from data_plane.engine.residency import read_residency
from data_plane.engine.steps import EngineSteps, read_steps
from tenora.stack.base_model import materialize
from tests.fixtures.engine.real_engine import BASE, KEY, real_engine

_POLL_S = 0.1
_TOKENS = (100, 40_000)  # ids of ordinary tokens in the base model's vocabulary


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a run tries. Each cell is one combination, and runs for ``cell_s``, first with answers of one token and then
    with long ones.
    """

    prompts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    adapters: tuple[int, ...]
    output_tokens: int
    cell_s: float
    window_s: float
    seed: int

    @property
    def cells(self) -> list[tuple[int, int, int, int]]:
        """(prompt tokens, concurrency, adapters, output tokens) in a random order, so that a drift of the machine falls
        on all of them. Cells with more adapters than requests in flight are left out.
        """
        outputs = (1, self.output_tokens)
        found = [
            cell
            for cell in itertools.product(self.prompts, self.concurrencies, self.adapters, outputs)
            if cell[2] <= cell[1]
        ]
        random.Random(self.seed).shuffle(found)
        return found


SWEEPS = {
    "full": Sweep(
        prompts=(16, 128, 512), concurrencies=(1, 4, 8), adapters=(0, 1, 4), output_tokens=48, cell_s=3, window_s=1,
        seed=1,
    ),
    "short": Sweep(
        prompts=(16, 256), concurrencies=(1, 8), adapters=(0, 4), output_tokens=32, cell_s=2, window_s=0.5, seed=1,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Target:
    """The engine to drive. Without ``run_dir`` its counters are on another machine, or its agent's to report."""

    url: str
    key: str
    model: str
    adapters: tuple[str, ...]
    run_dir: Path | None


def observed(before: tuple[EngineSteps, int], after: tuple[EngineSteps, int]) -> Observation:
    """What happened between two readings of (step counters, milliseconds of load stalls)."""
    (first, stalled_before), (last, stalled_after) = before, after
    work = StepWork(**{name: getattr(last, name) - getattr(first, name) for name in StepWork.__struct_fields__})
    busy_ms = last.busy_ns // 1_000_000 - first.busy_ns // 1_000_000
    return Observation(work=work, busy_ms=busy_ms, stall_ms=min(busy_ms, stalled_after - stalled_before))


async def drive(target: Target, sweep: Sweep) -> list[Observation]:
    """Run every cell and collect the windows."""
    windows: list[Observation] = []
    stopping = asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await _load_adapters(session, target)
        watching = asyncio.create_task(_watch(target, sweep, windows, stopping))
        for number, cell in enumerate(sweep.cells, 1):
            await _run_cell(session, target, sweep, cell)
            click.echo(f"cell {number} of {len(sweep.cells)}: prompt, requests, adapters, output {cell}", err=True)
        stopping.set()
        await watching
    return windows


async def _load_adapters(session: aiohttp.ClientSession, target: Target) -> None:
    """A first answer of every adapter, so that the cells measure steps and not the store."""
    for model in (target.model, *target.adapters):
        await stream(session, target.url, target.key, model=model, prompt=[100] * 8, output_tokens=2)


async def _run_cell(
    session: aiohttp.ClientSession, target: Target, sweep: Sweep, cell: tuple[int, int, int, int]
) -> None:
    prompt_tokens, concurrency, adapters, output_tokens = cell
    models: Sequence[str] = target.adapters[:adapters] or (target.model,)
    chance = random.Random(f"{sweep.seed} {cell}")
    ends = time.monotonic() + sweep.cell_s

    async def client(number: int) -> None:
        while True:
            prompt = [chance.randint(*_TOKENS) for _ in range(prompt_tokens)]  # unique, so that no prefix is cached
            model = models[number % len(models)]
            await stream(session, target.url, target.key, model=model, prompt=prompt, output_tokens=output_tokens)
            if time.monotonic() >= ends:
                return

    async with asyncio.TaskGroup() as clients:
        for number in range(concurrency):
            clients.create_task(client(number))


async def _watch(target: Target, sweep: Sweep, windows: list[Observation], stopping: asyncio.Event) -> None:
    """Read the counters until the sweep is over, and end a window when it is long enough and a step has ended."""
    if target.run_dir is None:
        return
    before, since = reading(target.run_dir), time.monotonic()
    while not stopping.is_set():
        await asyncio.sleep(_POLL_S)
        now = reading(target.run_dir)
        if time.monotonic() - since >= sweep.window_s and now[0].steps > before[0].steps:
            windows.append(observed(before, now))
            before, since = now, time.monotonic()


def reading(run_dir: Path) -> tuple[EngineSteps, int]:
    """The step counters of an engine, and milliseconds of load stalls."""
    table = read_residency(run_dir)
    return read_steps(run_dir) or EngineSteps(), 0 if table is None else table.step_stall_ms


@contextlib.contextmanager
def own_engine(home: Path, work: Path, sweep: Sweep, *, tiny: bool) -> Iterator[Target]:
    """An engine of the one-machine base model, or of a tiny one, with as many adapters as the sweep uses."""
    checkpoint = materialize(home, lambda text: click.echo(text, err=True))
    if tiny:
        checkpoint = make_tiny_model(work / "model", checkpoint, seed=sweep.seed)
    adapters = max(sweep.adapters)
    with (
        embedded_s3(work / "s3") as s3,
        real_engine(
            checkpoint, s3, work, slots=max(adapters, 1), memory=max(adapters, 1), engine_context_tokens=2048,
            environment={"NUMBA_CACHE_DIR": str(work / "compiled")},
        ) as engine,
    ):  # fmt: skip
        names = tuple(engine.new_adapter(sweep.seed + number) for number in range(adapters))
        yield Target(url=engine.url, key=KEY, model=BASE, adapters=names, run_dir=engine.settings.run_dir)


def result_of(sweep: Sweep, engine: str, windows: Sequence[Observation]) -> tuple[dict[str, Any], str]:
    """The fit as JSON and as lines for people. Raises Unprocessable for too few windows."""
    weights, judged = fit(windows)
    fixed_error_ppm = fixed_weights_error_ppm(windows)
    result = {
        "engine": engine,
        "sweep": asdict(sweep),
        "weights": msgspec.to_builtins(weights),
        "quality": msgspec.to_builtins(judged) | {"flags": judged.flags},
        "fixed_weights_error_ppm": fixed_error_ppm,
        "windows": msgspec.to_builtins(windows),
    }
    fixed = f"  fixed weights (prompt token 1, decoded token 2): median error {fixed_error_ppm / 10_000:.1f} %"
    return result, f"{engine}\n{described(weights, judged)}\n{fixed}"


def fixed_weights_error_ppm(windows: Sequence[Observation]) -> int:
    """The median error of ``UNFITTED`` on the same held-out windows, at the scale that fits the others best."""
    fitted_to, held_out = split(windows)
    ratios = [UNFITTED.predict_ps(each.work) / (each.step_ms * PS_PER_MS) for each in fitted_to]
    scale = sum(ratios) / sum(ratio * ratio for ratio in ratios)  # least squares of the relative errors
    scaled = {name: round(value * scale) for name, value in msgspec.structs.asdict(UNFITTED).items()}
    return quality(StepWeights(**scaled), held_out, observations=len(windows)).median_error_ppm


@click.command()
@click.option("--short", "short", is_flag=True, help="A sweep of a minute, to see that everything works.")
@click.option("--tiny", is_flag=True, help="A tiny model with random weights instead of the base model.")
@click.option("--url", help="Drive the running replica at this address instead of an engine of its own.")
@click.option("--key", default="", help="The engine key of that replica.", envvar="TENORA_ENGINE_KEY")
@click.option("--model", default=BASE, show_default=True, help="The base model of that replica.")
@click.option("--adapter", "adapters", multiple=True, help="Engine name of an adapter of that replica; repeatable.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="The run folder of that replica, if it is here.")
@click.option("--home", type=click.Path(path_type=Path), default=Path(".tenora"), help="Where the base model is kept.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write all windows and the fit to this file.")
def main(short: bool, tiny: bool, home: Path, out: Path | None, **target_of: Any) -> None:
    """Fit a replica's step time (five minutes; use a machine with nothing else to do)."""
    sweep = SWEEPS["short" if short else "full"]
    if target_of["url"] is not None:
        target = Target(**target_of)
        windows = asyncio.run(drive(target, sweep))
        engine = target.url
    else:
        with tempfile.TemporaryDirectory(prefix="tenora-calibration-") as folder:
            device, version = installed_engine()
            engine = f"{'tiny model' if tiny else BASE}, rank 8 adapters, vLLM {version} on {device}"
            with own_engine(home, Path(folder), sweep, tiny=tiny) as target:
                windows = asyncio.run(drive(target, sweep))
    if target.run_dir is None:
        click.echo("the replica's agent has reported the windows; `python -m billing fit-costs` fits them")
        return
    result, lines = result_of(sweep, engine, windows)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1))
    click.echo(lines)
    sys.exit(1 if result["quality"]["flags"] else 0)


if __name__ == "__main__":
    main()
