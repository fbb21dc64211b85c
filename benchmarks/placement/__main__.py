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

from benchmarks.goals import report
from benchmarks.load import quantile
from benchmarks.placement.replicas import Fleet, Model, Request, SimReplica
from benchmarks.trace import Arrival, TraceShape, draw
from data_plane.gateway.scheduling.placement import PlacementCosts, PlacementQuery, rank
from tests.fixtures.gateway.requests import inference_request

COSTS: Final = PlacementCosts(
    store_ms=600, disk_ms=50, slot_ms=35, prompt_token_ms=0.05, running_ms=2, headroom_share=0.0
)  # fmt: skip
PASSED_OVER_S: Final = 2.0
DECISION_MS: Final = "milliseconds of processor time for a decision, p99"
OUTPUT: Final = "output tokens a second, to all ranked"
GOALS: Final = {
    "TTFT p50, to the best of the simpler rules": 1.10,
    "TTFT p99, to the best of the simpler rules": 1.05,
    "requests of the busiest replica, to the mean": 2.0,
}
BOUNDS_OF_MANY: Final = {DECISION_MS: 0.5, OUTPUT: 0.98}
Rule = Callable[[Fleet, Request], SimReplica | None]
ALL_RANKED: Final = "all ranked"  # no simpler rule: what the shortlist is compared with


def tenora(fleet: Fleet, request: Request) -> SimReplica | None:
    """The gateway's placement; None means that the request waits."""
    query = query_of(request, overdue=fleet.now - request.at_s > PASSED_OVER_S)
    candidates, homes = fleet.index.shortlist(query.request)
    ranking = rank(candidates, query, COSTS, homes=homes)
    if not ranking.now and homes is not None:  # it waits: what the queue's scan looks at
        ranking = rank(fleet.index.roomy(), query, COSTS)
    return fleet.by_id[ranking.now[0].status.id] if ranking.now else None


def all_ranked(fleet: Fleet, request: Request) -> SimReplica | None:
    """The gateway's placement over all replicas, however many there are."""
    query = query_of(request, overdue=fleet.now - request.at_s > PASSED_OVER_S)
    ranking = rank(fleet.candidates(), query, COSTS)
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
    ALL_RANKED: all_ranked,
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
    decisions_s: list[float] = []

    def timed(fleet: Fleet, request: Request) -> SimReplica | None:
        began = time.thread_time()
        replica = rule(fleet, request)
        decisions_s.append(time.thread_time() - began)
        return replica

    began = time.perf_counter()
    done = fleet.run(arrivals, timed)
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
        "decision_ms": {f"p{round(100 * q)}": round(1000 * quantile(decisions_s, q), 3) for q in (0.5, 0.99)},
        "simulated_s_per_s": round(fleet.now / placing_s, 2),
    }


def judged(rules: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each goal whose rules ran, with the measured value and its bound."""
    ours = rules["tenora"]
    found = {DECISION_MS: (ours["decision_ms"]["p99"], "at most")}
    if others := [row for name, row in rules.items() if name not in ("tenora", ALL_RANKED)]:
        p50, p99 = (
            ours["first_token_s"][quantile] / min(row["first_token_s"][quantile] for row in others)
            for quantile in ("p50", "p99")
        )
        found |= {
            goal: (value, "at most") for goal, value in zip(GOALS, (p50, p99, ours["busiest_to_mean"]), strict=True)
        }
    if ranked := rules.get(ALL_RANKED):
        found[OUTPUT] = (ours["tokens_per_s"] / ranked["tokens_per_s"], "at least")
    bounds = GOALS | BOUNDS_OF_MANY
    return {
        goal: {
            "seen": round(value, 3),
            "goal": f"{kind} {bounds[goal]}",
            "met": value <= bounds[goal] if kind == "at most" else value >= bounds[goal],
        }
        for goal, (value, kind) in found.items()
    }


def recorded(path: Path) -> list[Arrival]:
    """Read a recorded trace from JSON lines."""
    return [msgspec.json.decode(line, type=Arrival) for line in path.read_bytes().splitlines() if line]


@click.command()
@click.option("--replicas", default=200, help="Simulated replicas.")
@click.option(
    "--rule", "chosen", type=click.Choice(list(RULES)), multiple=True, help="Rules beside tenora's [default: all]."
)
@click.option("--slots", default=8, help="Adapter slots of one replica.")
@click.option("--adapters", default=2000, help="Adapters in all.")
@click.option("--skew", default=1.0, help="Exponent of Zipf's law.")
@click.option("--rate", default=800.0, help="Requests a second.")
@click.option("--cv", default=1.0, help="Variation of the gaps between requests: 1 is Poisson, more is bursty.")
@click.option("--duration", default=30.0, help="Simulated seconds.")
@click.option("--trace", type=click.Path(path_type=Path, exists=True), help="Replay this recorded trace.")
@click.option("--seed", default=42)
@click.option("--out", type=click.Path(path_type=Path), default=Path("placement_sim.json"))
def main(replicas: int, slots: int, chosen: tuple[str, ...], trace: Path | None, out: Path, **shape: Any) -> None:
    """Simulate rules on one trace, print a table, write JSON."""
    arrivals = recorded(trace) if trace else draw(
        TraceShape(
            adapters=shape["adapters"], popularity="zipf", skew=shape["skew"], rate_per_s=shape["rate"],
            cv=shape["cv"], duration_s=shape["duration"], prompt_tokens=(100, 1000), output_tokens=(20, 300),
            seed=shape["seed"],
        )
    )  # fmt: skip
    results = {}
    columns = "slot hits      S3  TTFT p50      p99   swaps  stalls busiest   CPU p50     p99"
    click.echo(f"{'rule':16} {columns}")
    for name in [name for name in RULES if not chosen or name in ("tenora", *chosen)]:
        rule = RULES[name]
        row = results[name] = simulate(rule, arrivals, Model(slots=slots), replicas)
        first = row["first_token_s"]
        click.echo(
            f"{name:16}{row['hit_rate']['slot']:>10.3f}{row['hit_rate']['store']:>8.3f}{first['p50']:>9.3f}s"
            f"{first['p99']:>8.3f}s{row['swaps']:>8}{row['stall_share']:>8.3f}{row['busiest_to_mean']:>8.2f}"
            f"{row['decision_ms']['p50']:>8.2f}ms{row['decision_ms']['p99']:>6.2f}ms"
        )
    goals = judged(results)
    written = {"replicas": replicas, "slots": slots, "shape": shape, "rules": results, "goals": goals}
    out.write_text(json.dumps(written, indent=1))
    report(goals)


if __name__ == "__main__":
    main()
