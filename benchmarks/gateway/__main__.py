"""Measures the overhead of a gateway: Tenora with all features on, a bare relay, LiteLLM's proxy and vllm-router.

All of them get the same upstream and load generator, in shuffled rounds, after litellm-bench's streaming protocol;
figures are medians of rounds. The gateways have one core; upstream, generator and Valkey have the others. The request
and the checks are in ``benchmarks.gateway.exchange``, the measured programs in ``benchmarks.gateway.contenders``, and
the figures in ``benchmarks.gateway.figures``.
"""

import contextlib
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.gateway import contenders, peers
from benchmarks.gateway.client import LoadReport
from benchmarks.gateway.contenders import Contender, Cores
from benchmarks.gateway.figures import Measured, Rounds, by_cpu, doubts, judged, rows, table
from benchmarks.process_usage import usage_of
from tests.fixtures.processes import ROOT

_AT_ONCE = 32
_PACE = (10, 1)  # ms before the first event, and between events
_SLOW_PER_S = 200.0  # below this rate a window holds too few answers, so the window is made longer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of a run, from the command line."""

    rounds: int
    seconds: float
    warm_s: float
    seed: int
    rate: float | None
    home: Path
    peers: bool
    quick: bool


class Bench:
    """Runs one generator at a time against one contender, with the shared upstream behind it."""

    def __init__(self, plan: Plan, upstream: Contender, cores: Cores) -> None:
        self._plan = plan
        self._upstream = upstream
        self._cores = cores
        self._prompt_tokens = contenders.prompt_tokens()
        self.measured: list[Measured] = []

    def warm(self, contender: Contender) -> float:
        """Exercise each code path of a contender once. Returns streams per second, to choose the window length."""
        self._pace(0, 0)
        self._generate(contender, "whole", seconds=min(1.0, self._plan.seconds))
        return self._generate(contender, "stream", seconds=min(2.0, self._plan.seconds)).per_s

    def round(self, number: int, contender: Contender, *, slow: bool) -> None:
        """Apply every kind of load to one contender."""
        longer = 3.0 if slow else 1.0
        self._pace(0, 0)
        self._measure(number, contender, "whole", at_once=_AT_ONCE, longer=longer)
        self._measure(number, contender, "burst", at_once=_AT_ONCE, longer=longer)
        paced = self.paced(number, contender, longer=longer)
        if contender is not self._upstream and paced.per_s:
            rate = self._plan.rate or paced.per_s / 2
            self._measure(number, contender, "half", rate=rate, longer=longer)
            self._measure(number, self._upstream, "half_direct", rate=rate, longer=longer, named=contender.name)

    def paced(self, number: int, contender: Contender, *, longer: float = 1.0) -> LoadReport:
        """Apply as many streams at once as a contender serves best, with events as far apart as an engine's."""
        self._pace(*_PACE)
        return self._measure(number, contender, "paced", at_once=contender.concurrency, longer=longer)

    def _measure(
        self,
        number: int,
        contender: Contender,
        kind: str,
        *,
        longer: float,
        at_once: int = _AT_ONCE,
        rate: float | None = None,
        named: str | None = None,
    ) -> LoadReport:
        watched = {"contender": contender.pid, "upstream": self._upstream.pid}
        if contender.store_pid is not None:
            watched["store"] = contender.store_pid
        before, began = {who: usage_of(pid) for who, pid in watched.items()}, time.monotonic()
        seen = self._generate(
            contender, "whole" if kind == "whole" else "stream", seconds=self._plan.seconds * longer, at_once=at_once,
            rate=rate, warm_s=self._plan.warm_s * longer,
        )  # fmt: skip
        took = time.monotonic() - began
        after = {who: usage_of(pid) for who, pid in watched.items()}
        used = {who: (after[who] - before[who]).cpu_s for who in watched}
        busy = {who: round(cpu_s / took, 3) for who, cpu_s in used.items()} | {"generator": round(seen.busy, 3)}
        if len(self._cores.others) == 1:
            shared = used["upstream"] + used.get("store", 0.0) + seen.cpu_s
            busy["other core"] = round(shared / took, 3)
        served = max(1, seen.served)
        self.measured.append(
            Measured(
                contender=named or contender.name, round=number, kind=kind, seen=seen,
                cpu_us=used["contender"] / served * 1e6, store_cpu_us=used.get("store", 0.0) / served * 1e6,
                rss_bytes=after["contender"].rss_bytes, busy=busy,
            )
        )  # fmt: skip
        click.echo(
            f"round {number} {named or contender.name:>12} {kind:>11}: {seen.per_s:8.1f}/s  TTFT {seen.first_ms} ms  "
            f"gap {seen.gap_ms} ms  CPU {used['contender'] / served * 1e6:.0f} us  errors {seen.errors}  busy {busy}",
            err=True,
        )  # fmt: skip
        for example in seen.error_examples[:1]:
            click.echo(f"  an error: {example[:300]}", err=True)
        return seen

    def _generate(
        self,
        contender: Contender,
        kind: str,
        *,
        seconds: float,
        at_once: int = _AT_ONCE,
        rate: float | None = None,
        warm_s: float = 0.5,
    ) -> LoadReport:
        """Run one load in a separate process. Raises RuntimeError when the generator fails."""
        command = [
            sys.executable, "-m", "benchmarks.gateway.client", kind, "--port", str(contender.port),
            "--key", contender.key, "--prompt-tokens", str(self._prompt_tokens), "--concurrency", str(at_once),
            "--seconds", str(seconds), "--warm-s", str(warm_s), *(() if rate is None else ("--rate", str(rate))),
        ]  # fmt: skip
        with contenders.pinned(self._cores.others):
            done = subprocess.run(  # noqa: S603 - our own module
                command, cwd=ROOT, capture_output=True, text=True, check=False
            )
        if done.returncode != 0:
            raise RuntimeError(f"the generator failed: {done.stderr[-1000:]}")
        reported = json.loads(done.stdout)
        events = {int(count): streams for count, streams in reported.pop("events").items()}
        return LoadReport(**reported, events=events)

    def _pace(self, first_ms: int, gap_ms: int) -> None:
        url = f"http://127.0.0.1:{self._upstream.port}/pace?first_ms={first_ms}&gap_ms={gap_ms}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()


def measure(plan: Plan, work: Path) -> dict[str, Any]:
    """Run the plan."""
    cores, absent = Cores.of_this_machine(), []
    with contextlib.ExitStack() as opened:
        with contenders.pinned(cores.others):
            upstream = opened.enter_context(contenders.upstream(work))
            stored = opened.enter_context(contenders.store(work, upstream.port))
        bench = Bench(plan, upstream, cores)
        everyone = [] if plan.quick else [upstream]
        with contenders.pinned(cores.gateway):
            everyone.append(opened.enter_context(contenders.tenora(work, stored)))
            if not plan.quick:
                everyone.append(opened.enter_context(contenders.unmetered(work, stored)))
            everyone.append(opened.enter_context(contenders.bare_relay(work, upstream.port)))
            for which in (peers.LITELLM, peers.ROUTER) if plan.peers else ():
                click.echo(f"installing and starting {which.requirement}", err=True)
                try:
                    everyone.append(opened.enter_context(contenders.peer(which, plan.home, work, upstream.port)))
                except peers.PeerUnavailable as error:
                    absent.append({"peer": which.requirement, "why": str(error)})
                    click.echo(f"not measured: {error}", err=True)
        slow = {each.name: bench.warm(each) < _SLOW_PER_S for each in everyone}
        stored.trim()
        order = random.Random(plan.seed)
        for number in range(plan.rounds):
            for each in order.sample(everyone, len(everyone)):
                bench.round(number, each, slow=slow[each.name])
        answered = [each for each in bench.measured if each.contender == "tenora" and each.kind != "half_direct"]
        ledger = {
            "answered": sum(each.seen.served for each in answered),
            "errors": sum(each.seen.errors for each in answered),
            "usage_events": stored.usage_events(),
        }
    rounds = Rounds(bench.measured)
    return {
        "machine": f"{platform.machine()}, gateway on core {sorted(cores.gateway)}, others on {sorted(cores.others)}",
        "plan": {**asdict(plan), "home": str(plan.home)}, "prompt_tokens": contenders.prompt_tokens(),
        "not_measured": absent,
        "rows": rows(rounds), "goals": judged(rounds), "by_cpu": by_cpu(rounds), "doubts": doubts(rounds),
        "ledger": ledger,
        "measured": [asdict(each) for each in bench.measured],
    }  # fmt: skip


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Rounds over all contenders, each in a new order.")
@click.option(
    "--seconds", default=3.0, show_default=True, help="Length of each load; slow contenders get three times that."
)
@click.option("--warm-s", default=0.7, show_default=True, help="Warm-up seconds before each load's window.")
@click.option("--seed", default=4, show_default=True, help="Seed of the order in each round.")
@click.option("--rate", type=float, help="Requests per second for the latencies; default: half of each one's own.")
@click.option(
    "--home", type=click.Path(path_type=Path), default=Path(".tenora/peers"), help="Where peers are installed."
)
@click.option("--peers/--no-peers", default=True, help="Whether to install and measure LiteLLM and vllm-router.")
@click.option("--quick", is_flag=True, help="One short smoke-test round against the bare relay only.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Also write all results as JSON to this file."
)
def main(quick: bool, json_path: Path | None, **options: Any) -> None:
    """Compare the gateway with its peers (about ten minutes on two cores)."""
    if quick:
        options |= {"rounds": 1, "seconds": 0.5, "warm_s": 0.2, "peers": False}
    with tempfile.TemporaryDirectory(prefix="tenora-gateway-") as folder:
        result = measure(Plan(quick=quick, **options), Path(folder))
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    click.echo(table(result["rows"]))
    if options["rate"]:
        click.echo(f"half load is {options['rate']:g} requests a second for every contender")
    for goal in result["goals"]:
        verdict = {True: "met", False: "missed", None: "not measured"}[goal["met"]]
        click.echo(f"{goal['goal']}: {goal['seen']} ({goal['bound']}: {verdict})")
    for row in result["rows"]:
        if (gap_ms := row["added_event_gap_p99_ms"]) is not None:
            click.echo(f"{row['contender']}: added gap p99 but for the one before [DONE] {gap_ms} ms")
    for row in result["by_cpu"]:
        kinds = f"whole {row['whole']}, unpaced {row['burst']}, paced {row['paced']}"
        click.echo(f"answers per CPU second, to {row['to']}: {kinds}")
    for doubt in result["doubts"]:
        click.echo(f"short of CPU: {doubt}")
    ledger = result["ledger"]
    click.echo(f"tenora answered {ledger['answered']} requests and settled {ledger['usage_events']} usage events")
    broken = ledger["usage_events"] != ledger["answered"] and not ledger["errors"]
    missed = not quick and any(goal["met"] is False for goal in result["goals"])
    sys.exit(1 if broken or missed else 0)


if __name__ == "__main__":
    main()
