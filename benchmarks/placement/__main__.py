"""Simulates hundreds of replicas under a trace of adapters, and compares the gateway's placement with simpler rules.

Costs of loading and of steps are modeled. Placement sees a replica's state with the same age as in a gateway.

Run: ``python -m benchmarks.placement``; ``--trace FILE`` replays a recorded trace, JSON lines of ``{"at_s",
"adapter", "prompt_tokens", "output_tokens"}``. Exits with status 1 when a goal is missed.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from benchmarks.load import quantile
from benchmarks.placement.replicas import Fleet, Model, Request, SimReplica
from benchmarks.trace import Arrival, TraceShape, draw
from data_plane.gateway.scheduling.placement import PlacementCosts, PlacementQuery, rank
from tests.fixtures.gateway.requests import inference_request

COSTS: Final = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0
)  # fmt: skip
PASSED_OVER_S: Final = 2.0
GOALS: Final = {
    "TTFT p50, to the best of the simpler rules": 1.10,
    "TTFT p99, to the best of the simpler rules": 1.05,
    "requests of the busiest replica, to the mean": 2.0,
}
Rule = Callable[[Fleet, Request], SimReplica | None]


def tenora(fleet: Fleet, request: Request) -> SimReplica | None:
    """The gateway's placement; None means that the request waits."""
    ranking = rank(fleet.candidates(), query_of(request, overdue=fleet.now - request.at_s > PASSED_OVER_S), COSTS)
    return fleet.by_id[ranking.now[0].status.id] if ranking.now else None


def residency_only(fleet: Fleet, request: Request) -> SimReplica | None:
    """The replica with the fastest tier for the adapter, then the most free pages: the gateway's previous rule."""
    tiers = {"slot": 0, "memory": 1, "disk": 2, "store": 3}
    roomy = fleet.with_room(request)
    by_tier = [(tiers[r.candidate.resident.tier(request.name)], r.taken_pages, r.number, r) for r in roomy]
    return min(by_tier)[3] if by_tier else None


def least_loaded(fleet: Fleet, request: Request) -> SimReplica | None:
    """The replica with the fewest taken pages."""
    return min(fleet.with_room(request), key=lambda r: (r.taken_pages, r.number), default=None)


def round_robin(fleet: Fleet, request: Request) -> SimReplica | None:
    """The replicas with room in turn."""
    roomy = fleet.with_room(request)
    return roomy[request.number % len(roomy)] if roomy else None


def at_random(fleet: Fleet, request: Request) -> SimReplica | None:
    """A random replica with room."""
    roomy = fleet.with_room(request)
    return random.Random(request.number).choice(roomy) if roomy else None


RULES: Final[dict[str, Rule]] = {
    "tenora": tenora,
    "residency only": residency_only,
    "least loaded": least_loaded,
    "round robin": round_robin,
    "random": at_random,
}


def query_of(request: Request, *, overdue: bool) -> PlacementQuery:
    """The request as the gateway's wait queue presents it to placement."""
    inference = inference_request(
        adapter=request.name, rank=8, prompt_tokens=request.prompt_tokens,
        max_tokens=request.tokens - request.prompt_tokens,
    )  # fmt: skip
    return PlacementQuery(inference, overdue=overdue)


def simulate(rule: Rule, arrivals: list[Arrival], model: Model, replicas: int) -> dict[str, Any]:
    """Run one rule over one trace. All times are simulated, except the wall time in ``simulated_s_per_s``."""
    fleet = Fleet(replicas, model)
    began = time.perf_counter()
    done = fleet.run(arrivals, rule)
    placing_s = time.perf_counter() - began
    first_s = [request.first_token_s for request in done]
    return {
        "requests": len(done),
        "hit_rate": {
            tier: round(sum(r.tier == tier for r in done) / len(done), 4)
            for tier in ("slot", "memory", "disk", "store")
        },
        "first_token_s": {f"p{round(100 * q)}": round(quantile(first_s, q), 4) for q in (0.5, 0.99)},
        "swaps": sum(replica.swaps for replica in fleet.replicas),
        "stall_share": round(sum(r.stalled_s for r in fleet.replicas) / (len(fleet.replicas) * fleet.now), 4),
        "waited_p99_s": round(quantile([r.placed_s - r.at_s for r in done], 0.99), 4),
        "tokens_per_s": round(sum(r.output_tokens for r in done) / fleet.now, 1),
        "busiest_to_mean": round(fleet.busiest_to_mean(), 2),
        "simulated_s_per_s": round(fleet.now / placing_s, 2),
    }


def judged(rules: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each goal, the upper bound of a ratio, with the measured value."""
    ours, others = rules["tenora"], [row for name, row in rules.items() if name != "tenora"]
    p50, p99 = (
        ours["first_token_s"][quantile] / min(row["first_token_s"][quantile] for row in others)
        for quantile in ("p50", "p99")
    )
    seen = (p50, p99, ours["busiest_to_mean"])
    return {
        goal: {"seen": round(value, 3), "goal": bound, "met": value <= bound}
        for (goal, bound), value in zip(GOALS.items(), seen, strict=True)
    }


def recorded(path: Path) -> list[Arrival]:
    """Read a recorded trace from JSON lines."""
    return [msgspec.json.decode(line, type=Arrival) for line in path.read_bytes().splitlines() if line]


@click.command()
@click.option("--replicas", default=200, help="Simulated replicas.")
@click.option("--slots", default=8, help="Adapter slots of one replica.")
@click.option("--adapters", default=2000, help="Adapters in all.")
@click.option("--skew", default=1.0, help="Exponent of Zipf's law.")
@click.option("--rate", default=800.0, help="Requests a second.")
@click.option("--cv", default=1.0, help="Variation of the gaps between requests: 1 is Poisson, more is bursty.")
@click.option("--duration", default=30.0, help="Simulated seconds.")
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="Replay this recorded trace.")
@click.option("--seed", default=42)
@click.option("--out", type=click.Path(path_type=Path), default=Path("placement_sim.json"))
def main(replicas: int, slots: int, trace: Path | None, out: Path, **shape: Any) -> None:
    """Simulate every rule on one trace, print a table, write JSON."""
    arrivals = recorded(trace) if trace else draw(
        TraceShape(
            adapters=shape["adapters"], popularity="zipf", skew=shape["skew"], rate_per_s=shape["rate"],
            cv=shape["cv"], duration_s=shape["duration"], prompt_tokens=(100, 1000), output_tokens=(20, 300),
            seed=shape["seed"],
        )
    )  # fmt: skip
    results = {}
    click.echo(
        f"{'rule':16}{'slot hits':>10}{'S3':>8}{'TTFT p50':>10}{'p99':>9}{'swaps':>8}{'stalls':>8}{'busiest':>8}"
    )
    for name, rule in RULES.items():
        row = results[name] = simulate(rule, arrivals, Model(slots=slots), replicas)
        first = row["first_token_s"]
        click.echo(
            f"{name:16}{row['hit_rate']['slot']:>10.3f}{row['hit_rate']['store']:>8.3f}{first['p50']:>9.3f}s"
            f"{first['p99']:>8.3f}s{row['swaps']:>8}{row['stall_share']:>8.3f}{row['busiest_to_mean']:>8.2f}"
        )
    goals = judged(results)
    written = {"replicas": replicas, "slots": slots, "shape": shape, "rules": results, "goals": goals}
    out.write_text(json.dumps(written, indent=1))
    for goal, row in goals.items():
        click.echo(f"{'met   ' if row['met'] else 'MISSED'} {row['seen']:>8} ({row['goal']})  {goal}")
    if not all(row["met"] for row in goals.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
