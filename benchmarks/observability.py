"""Measures what the request log, the access log and traces cost a gateway: a gateway with all of them in turns with
two without, whose difference is the noise. Upstream and load are those of ``benchmarks.gateway``.

Run: ``python -m benchmarks.observability``. Exits with status 1 when the goal is missed. The gateway has one core and
is saturated, so its streams a second fall by what each stream costs. The turns are short and many, because the speed
of a shared machine changes within seconds.
"""

import contextlib
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

import click

from benchmarks.gateway import contenders
from benchmarks.gateway.__main__ import Bench, Plan
from tests.fixtures.gateway.otlp_collector import otlp_collector

GOAL: Final = 0.97
OFF: Final[dict[str, object]] = {"request_log_entries_max": 0, "gateway_access_log": False}
ALL: Final = "logs and traces"


def measure(plan: Plan, work: Path) -> tuple[dict[str, dict[str, float]], int]:
    """For each gateway the medians of its rate and CPU time and of their ratios to those without anything on, and how
    many batches of traces arrived.
    """
    cores = contenders.Cores.of_this_machine()
    with contextlib.ExitStack() as opened:
        with contenders.pinned(cores.others):
            upstream = opened.enter_context(contenders.upstream(work))
            stored = opened.enter_context(contenders.store(work, upstream.port))
            collector = opened.enter_context(otlp_collector())
        traced: dict[str, object] = {"otlp_endpoint": collector.url, "otlp_interval_s": 1}
        bench = Bench(plan, upstream, cores)
        with contenders.pinned(cores.gateway):
            everyone = [
                opened.enter_context(contenders.tenora(work, stored, name, **settings))
                for name, settings in {"off": OFF, "off again": OFF, ALL: traced}.items()
            ]
        for each in everyone:
            bench.warm(each)
        order = random.Random(plan.seed)
        for number in range(plan.rounds):
            for each in order.sample(everyone, len(everyone)):
                bench.paced(number, each)
    seen = {(each.contender, each.round): (each.seen.per_s, each.cpu_us) for each in bench.measured}
    result = {}
    for each in everyone:
        own, off = ([seen[name, at] for at in range(plan.rounds)] for name in (each.name, "off"))
        result[each.name] = {
            "per_s": round(median(rate for rate, _ in own), 1),
            "cpu_us": round(median(cpu for _, cpu in own)),
            "per_s_to_off": round(median(a / b for (a, _), (b, _) in zip(own, off, strict=True)), 3),
            "per_cpu_s_to_off": round(median(b / a for (_, a), (_, b) in zip(own, off, strict=True)), 3),
        }
    return result, collector.batches.qsize()


@click.command()
@click.option("--rounds", default=36, show_default=True, help="Rounds over the gateways, each in a new order.")
@click.option("--seconds", default=1.5, show_default=True, help="Length of each load.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Where the figures are written.")
def main(rounds: int, seconds: float, json_path: Path | None) -> None:
    """Compare the gateways (about six minutes on two cores)."""
    plan = Plan(rounds=rounds, seconds=seconds, warm_s=0.3, seed=4, rate=None, home=Path(), peers=False, quick=False)
    with tempfile.TemporaryDirectory(prefix="tenora-observability-") as folder:
        result, batches = measure(plan, Path(folder))
    print(json.dumps(result, indent=1))
    share = result[ALL]["per_s_to_off"]
    print(f"streams a second with logs and traces, to off: {share} (goal >= {GOAL}); {batches} batches of traces")
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    sys.exit(1 if share < GOAL or not batches else 0)


if __name__ == "__main__":
    main()
