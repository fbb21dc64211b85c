"""Compares attributed cost with what two tenants really cause. An engine does the work of A, of B, and of both at once;
the shares of the joint run are compared with the Shapley values of the three measured busy times.

The Shapley value of a tenant is the mean of what its work adds without and with the other's. It adds up, and is fair to
both. Run: ``python -m benchmarks.attribution``, on a machine with nothing else to do.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp
import click
import msgspec

from benchmarks.calibration import SWEEPS, Target, drive, observed, own_engine, reading
from benchmarks.load import stream
from billing.costs.allocation import CostOwner, OwnerWork, ReplicaSlice, allocate
from billing.costs.rates import MS_PER_HOUR
from billing.costs.step_model import Observation, StepWeights, fit

ERROR_MAX: Final = 0.15
_VOCABULARY: Final = (100, 40_000)
_NANOS_PER_HOUR: Final = 3_600_000_000


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One tenant's fixed work: ``requests`` of the same shape, ``concurrency`` of them at once."""

    tenant: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int

    @property
    def used(self) -> OwnerWork:
        """What this work uses, as ``billing.costs.owners`` counts it from the records."""
        decoded = self.output_tokens - 1  # the first token comes out of the prefill
        context = decoded * self.prompt_tokens + decoded * (decoded + 1) // 2
        return OwnerWork(
            owner=CostOwner(tenant_id=self.tenant, adapter_id=f"ad_{self.tenant}"),
            prefill_tokens=self.requests * self.prompt_tokens,
            decode_tokens=self.requests * decoded,
            context_tokens=self.requests * context,
            sequence_steps=self.requests * self.output_tokens,
        )


WORKLOADS: Final = (
    Workload(tenant="long_prompts", requests=16, prompt_tokens=384, output_tokens=16, concurrency=4),
    Workload(tenant="long_answers", requests=16, prompt_tokens=16, output_tokens=96, concurrency=4),
)


def shapley(alone_ms: Sequence[int], together_ms: int) -> tuple[Fraction, Fraction]:
    """The Shapley values of two tenants, from the busy time of each alone and of both together."""
    first, second = alone_ms
    return Fraction(first + together_ms - second, 2), Fraction(second + together_ms - first, 2)


def attributed(joint: Observation, workloads: Sequence[Workload], weights: StepWeights) -> list[Fraction]:
    """Milliseconds of the joint run's busy time that each workload is charged."""
    given = ReplicaSlice(
        charges={"busy": joint.busy_ms * _NANOS_PER_HOUR},
        busy_ms=joint.busy_ms,
        stall_ms=joint.stall_ms,
        work=joint.work,
        owners=[each.used for each in workloads],
    )
    rows = allocate(given, weights).rows
    return [
        sum(
            (Fraction(row.nanos * MS_PER_HOUR, _NANOS_PER_HOUR) for row in rows if row.owner.tenant_id == each.tenant),
            Fraction(0),
        )
        for each in workloads
    ]


async def _run(target: Target, workloads: Sequence[Workload], seed: int) -> Observation:
    """Do the work of all workloads at once, and measure it."""
    assert target.run_dir is not None, "this engine runs here"
    before = reading(target.run_dir)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        for number, each in enumerate(workloads):
            group.create_task(_do(session, target, target.adapters[number], each, random.Random(f"{seed} {number}")))
    return observed(before, reading(target.run_dir))


async def _do(
    session: aiohttp.ClientSession, target: Target, adapter: str, work: Workload, chance: random.Random
) -> None:
    waiting = iter(range(work.requests))

    async def client() -> None:
        for _ in waiting:
            prompt = [chance.randint(*_VOCABULARY) for _ in range(work.prompt_tokens)]  # unique: no prefix is cached
            await stream(
                session, target.url, target.key, model=adapter, prompt=prompt, output_tokens=work.output_tokens
            )

    async with asyncio.TaskGroup() as clients:
        for _ in range(work.concurrency):
            clients.create_task(client())


async def measure(target: Target, weights: StepWeights, rounds: int) -> list[dict[str, float]]:
    """The errors of the attributed cost against the Shapley value, by round and tenant."""
    found = []
    for number in range(rounds):
        alone = [await _run(target, [each], 2 * number) for each in WORKLOADS]
        joint = await _run(target, WORKLOADS, 2 * number + 1)
        fair = shapley([each.step_ms for each in alone], joint.step_ms)
        shares = attributed(joint, WORKLOADS, weights)
        errors = {
            each.tenant: float(share / value - 1) for each, share, value in zip(WORKLOADS, shares, fair, strict=True)
        }
        click.echo(f"alone {[each.step_ms for each in alone]} ms, together {joint.step_ms} ms: errors {errors}")
        found.append(errors)
    return found


@click.command()
@click.option("--rounds", default=5, show_default=True, help="How often both tenants are measured.")
@click.option("--full", is_flag=True, help="Fit the cost function to the full calibration sweep instead of the short.")
@click.option("--home", type=click.Path(path_type=Path), default=Path(".tenora"), help="Where the base model is kept.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the errors to this file.")
def main(rounds: int, home: Path, out: Path | None, *, full: bool) -> None:
    """Measure by how much attributed cost differs from the Shapley value (about five minutes)."""
    sweep = SWEEPS["full" if full else "short"]
    with (
        tempfile.TemporaryDirectory(prefix="tenora-attribution-") as folder,
        own_engine(home, Path(folder), sweep, tiny=False) as target,
    ):
        weights, quality = fit(asyncio.run(drive(target, sweep)))
        click.echo(f"cost function: {msgspec.to_builtins(quality)}")
        errors = asyncio.run(measure(target, weights, rounds))
    worst = max(abs(median(each[work.tenant] for each in errors)) for work in WORKLOADS)
    click.echo(f"largest median error {worst:.1%} (goal: at most {ERROR_MAX:.0%})")
    if out is not None:
        out.write_text(json.dumps({"errors": errors, "worst": worst}, indent=1))
    sys.exit(worst > ERROR_MAX)


if __name__ == "__main__":
    main()
