"""Measures what the request log, the access log and traces cost a gateway: gateways in turns, two without all of
them, whose difference is the noise, and others with some. Upstream and load are those of ``benchmarks.gateway``.

Run: ``python -m benchmarks.observability``. Exits with status 1 when the goal is missed. It judges streams a second of
the gateway's CPU time: the gateway has one core, and other programs of the machine change the rate but not that.
"""

import contextlib
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from benchmarks.gateway import contenders
from benchmarks.gateway.__main__ import Bench, Plan
from tests.fixtures.gateway.otlp_collector import otlp_collector

GOAL: Final = 0.97
OFF: Final[dict[str, object]] = {"request_log_entries_max": 0, "gateway_access_log": False}
KINDS: Final = ("whole", "burst", "paced")


def measure(plan: Plan, work: Path) -> tuple[dict[str, Any], int]:
    """For each gateway and kind of load the medians of its rates and CPU times and of their ratios to those without
    anything on, and how many batches of traces arrived.
    """
    cores = contenders.Cores.of_this_machine()
    with contextlib.ExitStack() as opened:
        with contenders.pinned(cores.others):
            upstream = opened.enter_context(contenders.upstream(work))
            stored = opened.enter_context(contenders.store(work, upstream.port))
            collector = opened.enter_context(otlp_collector())
        traced: dict[str, object] = {"otlp_endpoint": collector.url, "otlp_interval_s": 1}
        wanted = {"off": OFF, "off again": OFF, "logs": {}, "traces": OFF | traced, "logs and traces": traced}
        bench = Bench(plan, upstream, cores)
        with contenders.pinned(cores.gateway):
            everyone = [
                opened.enter_context(contenders.tenora(work, stored, name, **settings))
                for name, settings in wanted.items()
            ]
        for each in everyone:
            bench.warm(each)
        order = random.Random(plan.seed)
        for number in range(plan.rounds):
            for each in order.sample(everyone, len(everyone)):
                bench.round(number, each, slow=False, half=False)
    seen = {(each.contender, each.kind, each.round): (each.seen.per_s, each.cpu_us) for each in bench.measured}
    result: dict[str, Any] = {}
    for each in everyone:
        for kind in KINDS:
            own, off = ([seen[name, kind, at] for at in range(plan.rounds)] for name in (each.name, "off"))
            result.setdefault(each.name, {})[kind] = {
                "per_s": round(median(rate for rate, _ in own), 1),
                "cpu_us": round(median(cpu for _, cpu in own)),
                "per_s_to_off": round(median(a / b for (a, _), (b, _) in zip(own, off, strict=True)), 3),
                "per_cpu_s_to_off": round(median(b / a for (_, a), (_, b) in zip(own, off, strict=True)), 3),
            }
    return result, collector.batches.qsize()


@click.command()
@click.option("--rounds", default=9, show_default=True, help="Rounds over the gateways, each in a new order.")
@click.option("--seconds", default=3.0, show_default=True, help="Length of each load.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Where the figures are written.")
def main(rounds: int, seconds: float, json_path: Path | None) -> None:
    """Compare the gateways (about fifteen minutes on two cores)."""
    plan = Plan(rounds=rounds, seconds=seconds, warm_s=0.7, seed=4, rate=None, home=Path(), peers=False, quick=False)
    with tempfile.TemporaryDirectory(prefix="tenora-observability-") as folder:
        result, batches = measure(plan, Path(folder))
    print(json.dumps(result, indent=1))
    share = result["logs and traces"]["paced"]["per_cpu_s_to_off"]
    print(f"streams a CPU second with logs and traces, to off: {share} (goal >= {GOAL}); {batches} batches of traces")
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    sys.exit(1 if share < GOAL or not batches else 0)


if __name__ == "__main__":
    main()
