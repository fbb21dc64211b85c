"""Simulates a pool under five shapes of traffic, and compares the fleet process's code with simpler rules and a plan
that knows the future. A second run of that code knows three days before with the same traffic, as a pool's forecast
does.

Run: ``python -m benchmarks.autoscale``. Times, steps and pages are modeled; the start times are inputs, the default one
is measured. The queue-depth rule gets the settings that miss least of those that cost at most as much as the product.
Exits with status 1 when a goal is missed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.autoscale.pool import Rule, RunResult, SimPool, clairvoyant_cost_s
from benchmarks.autoscale.rules import MemoryRule, ProductRule, QueueDepthRule
from benchmarks.autoscale.traffic import SHAPES, requests
from control_plane.pools.forecast import DAY
from control_plane.pools.settings import FleetSettings

GOALS: Final = {
    "SLO misses, to those of the queue-depth rule at the same cost": 0.5,
    "cost, to that of the clairvoyant plan": 1.25,
}
MEASURED_START_S: Final = 75.0
"""From the first line of a real vLLM replica's log to ready: a model of 135M parameters on two busy cores."""
_DAYS: Final = 3
_QUEUE_RULES: Final = [(per_replica, calm_s) for per_replica in (8, 16, 32, 64) for calm_s in (20.0, 60.0, 120.0)]


@dataclass
class Total:
    """All runs of one rule."""

    name: str
    by_shape: dict[str, RunResult] = field(default_factory=dict)

    def add(self, shape: str, result: RunResult) -> None:
        """Add a run; the history of the first seed is drawn."""
        known = self.by_shape.setdefault(shape, RunResult(history=result.history))
        known.requests += result.requests
        known.misses += result.misses
        known.cost_s += result.cost_s

    @property
    def missed(self) -> float:
        """Share of requests that were refused, or got their first token late."""
        return sum(each.misses for each in self.by_shape.values()) / self.requests

    @property
    def requests(self) -> int:
        """Requests of all runs."""
        return sum(each.requests for each in self.by_shape.values())

    @property
    def cost_s(self) -> float:
        """Replica-seconds of all runs."""
        return sum(each.cost_s for each in self.by_shape.values())


def total_of(name: str, rule: Callable[[str], Rule], seeds: tuple[int, ...], starts_s: tuple[float, ...]) -> Total:
    """Run the rule of every shape over each seed."""
    total = Total(name)
    for shape, rate in SHAPES.items():
        for seed in seeds:
            total.add(shape, SimPool(rule(shape), starts_s, seed).run(requests(rate, seed)))
    click.echo(f"  {name}: {total.missed:.2%} missed, {total.cost_s / 3600:.1f} replica-hours", err=True)
    return total


def _queue_rule(per_replica: int, calm_s: float) -> Callable[[str], Rule]:
    return lambda _: QueueDepthRule(per_replica, calm_s)


def needs_of_days(shape: str, starts_s: tuple[float, ...]) -> dict[int, float]:
    """What the product needed in the same hour of the days before, with the same shape and other requests."""
    needs: dict[int, float] = {}
    for day in range(1, _DAYS + 1):
        rule = ProductRule(FleetSettings(), max(starts_s), {})
        SimPool(rule, starts_s, -day).run(requests(SHAPES[shape], -day))
        needs |= {slot - day * DAY: need for slot, need in rule.needs.items()}
    return needs


def clairvoyant(seeds: tuple[int, ...], starts_s: tuple[float, ...]) -> Total:
    """The plan that knows the future, which misses nothing."""
    total = Total("clairvoyant plan")
    for shape, rate in SHAPES.items():
        for seed in seeds:
            cost_s = clairvoyant_cost_s(requests(rate, seed), sum(starts_s) / len(starts_s))
            total.add(shape, RunResult(requests=sum(1 for _ in requests(rate, seed)), cost_s=cost_s))
    return total


def rows_of(totals: list[Total]) -> list[dict[str, Any]]:
    """The table, one row for each rule and shape."""
    return [
        {"rule": total.name, "shape": shape, "missed": run.misses / run.requests, "replica_hours": run.cost_s / 3600}
        for total in totals
        for shape, run in total.by_shape.items()
    ]


def draw(totals: list[Total], folder: Path) -> None:
    """One chart for each shape: the replicas that each rule wanted over time."""
    import matplotlib as mpl  # late: only charts need it

    mpl.use("svg")  # this backend needs no display
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    for shape, rate in SHAPES.items():
        figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True)
        above.plot(range(3600), [rate(at_s) for at_s in range(3600)])
        above.set(ylabel="requests/s", title=shape)
        for total in totals:
            if history := total.by_shape[shape].history:
                below.step([at_s for at_s, *_ in history], [wanted for _, wanted, _ in history], label=total.name)
        below.set(xlabel="seconds", ylabel="replicas wanted")
        below.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(folder / f"{shape.replace(' ', '-')}.svg")
        plt.close(figure)


@click.command()
@click.option("--seeds", default=2, show_default=True, type=click.IntRange(1, 20), help="Seeds of each trace.")
@click.option(
    "--start-s",
    "starts_s",
    multiple=True,
    type=click.FloatRange(min=1),
    default=(MEASURED_START_S,),
    show_default=True,
    help="Measured time until a replica is ready; given several times, each start takes one of them.",
)
@click.option("--plots", type=click.Path(path_type=Path), help="Folder for one SVG for each shape.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(seeds: int, starts_s: tuple[float, ...], plots: Path | None, *, as_json: bool) -> None:
    """Compare the fleet process's decisions with simpler rules and a clairvoyant plan (a minute a seed)."""
    chosen = tuple(range(1, seeds + 1))
    longest_s = max(starts_s)
    product = total_of("tenora", lambda _: ProductRule(FleetSettings(), longest_s, {}), chosen, starts_s)
    known = {shape: needs_of_days(shape, starts_s) for shape in SHAPES}
    forecast = total_of(
        "tenora, days alike", lambda shape: ProductRule(FleetSettings(), longest_s, known[shape]), chosen, starts_s
    )
    memory = total_of("memory 70/20", lambda _: MemoryRule(), chosen, starts_s)
    queues = [
        total_of(f"queue {each}/{calm_s:g} s", _queue_rule(each, calm_s), chosen, starts_s)
        for each, calm_s in _QUEUE_RULES
    ]
    affordable = [each for each in queues if each.cost_s <= product.cost_s] or [
        min(queues, key=lambda each: each.cost_s)
    ]
    queue = min(affordable, key=lambda each: each.missed)
    plan = clairvoyant(chosen, starts_s)
    seen = dict(zip(GOALS, (product.missed / queue.missed, product.cost_s / plan.cost_s), strict=True))
    totals = [product, forecast, queue, memory, plan]
    if plots:
        draw(totals, plots)
    if as_json:
        click.echo(json.dumps({"starts_s": starts_s, "seeds": seeds, "rows": rows_of(totals), "goals": seen}, indent=1))
    else:
        for total in totals:
            shapes = ", ".join(f"{shape} {run.misses / run.requests:.2%}" for shape, run in total.by_shape.items())
            cost = total.cost_s / plan.cost_s
            click.echo(f"{total.name:<20} missed {total.missed:.2%}  cost {cost:.2f} of the plan's  ({shapes})")
        for goal, bound in GOALS.items():
            click.echo(f"{goal}: {seen[goal]:.2f} (goal ≤ {bound}: {'met' if seen[goal] <= bound else 'missed'})")
    raise SystemExit(any(seen[goal] > bound for goal, bound in GOALS.items()))


if __name__ == "__main__":
    main()
