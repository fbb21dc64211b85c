"""Runs ten thousand concurrent streams, one event per second each, through two gateway processes. Measures errors,
memory per stream, and memory growth over time.

The upstream is the benchmarks' own, Valkey is real, and every stream is metered. Each process needs slightly more file
descriptors than there are streams; this program raises the soft limit to the hard limit.
"""

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.gateway import contenders
from benchmarks.gateway.contenders import Contender
from benchmarks.process_usage import Usage, usage_of
from tests.conftest import wait_until
from tests.fixtures.processes import ROOT

GOAL_KIB_PER_STREAM: Final = 40.0
GOAL_KIB_PER_MINUTE: Final = 1024.0
_TICK_MS: Final = 1000
_SPARE_FILES: Final = 500
_WARM_STREAMS: Final = 200
_TOKEN_COUNT_CACHE_BYTES: Final = 1 << 20
"""Size of the token-count cache. No two of these streams share a message, so the cache is full within the ramp and any
later growth is a leak. With the setting's default the cache would fill for most of the run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of a run, from the command line. A stream lasts ``ticks`` seconds; then another one replaces it."""

    streams: int
    gateways: int
    ticks: int
    ramp_s: float
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One second of the run: the generator's progress report, and the usage of each gateway."""

    progress: dict[str, Any]
    gateways: list[Usage]


def raise_file_limit(wanted: int) -> None:
    """Raise the limit for this process and its children. Raises click.ClickException when the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise click.ClickException(
            f"the run needs {wanted} open files and the hard limit is {hard}; raise it (ulimit -Hn) or lower --streams"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted) if hard == resource.RLIM_INFINITY else hard, hard))


def measure(plan: Plan, work: Path) -> dict[str, Any]:
    """Run the plan and return the findings as JSON values."""
    raise_file_limit(plan.streams + _SPARE_FILES)
    with contextlib.ExitStack() as opened:
        upstream = opened.enter_context(contenders.upstream(work, "--ticks", str(plan.ticks)))
        stored = opened.enter_context(contenders.store(work, upstream.port))
        gateways = [
            opened.enter_context(
                contenders.tenora(
                    work, stored, f"gateway-{number}", token_count_cache_max_bytes=_TOKEN_COUNT_CACHE_BYTES
                )
            )
            for number in range(plan.gateways)
        ]
        ports = [gateway.port for gateway in gateways]
        _pace(upstream, 0)
        for _ in _generated(plan, ports, stored.key, streams=_WARM_STREAMS, ramp_s=1, seconds=1):
            pass  # the baseline must include everything that the gateway loads once
        stored.trim()
        _pace(upstream, _TICK_MS)
        baseline = [usage_of(gateway.pid) for gateway in gateways]
        samples = []
        for progress in _generated(
            plan, ports, stored.key, streams=plan.streams, ramp_s=plan.ramp_s, seconds=plan.duration_s
        ):
            samples.append(Sample(progress=progress, gateways=[usage_of(gateway.pid) for gateway in gateways]))
            if len(samples) % 10 == 0:
                rss = ", ".join(f"{each.rss_bytes >> 20} MiB" for each in samples[-1].gateways)
                click.echo(f"{progress}  {rss}", err=True)
        report = samples.pop().progress
        wait_until(lambda: stored.usage_events() >= report["served"], what="every stream to settle")
        settled = stored.usage_events()
    return {"plan": asdict(plan), "settled": settled, **findings(plan, baseline, samples, report)}


def findings(plan: Plan, baseline: list[Usage], samples: list[Sample], report: dict[str, Any]) -> dict[str, Any]:
    """Summarize the samples taken while all streams are open, and the generator's last report. Pure."""
    steady = [each for each in samples if plan.ramp_s + 1 < each.progress["at_s"] <= plan.ramp_s + plan.duration_s]
    if not steady:
        raise click.ClickException("the run was too short for one second with all streams open")
    each_has = plan.streams / plan.gateways
    numbers = range(plan.gateways)
    kib = [[sample.gateways[number].rss_bytes / 1024 for sample in steady] for number in numbers]
    at_s = [sample.progress["at_s"] for sample in steady]
    first, last = steady[0].gateways, steady[-1].gateways
    took = max(1e-9, at_s[-1] - at_s[0])
    return {
        "running_least": min(sample.progress["running"] for sample in steady),
        "ended": report["served"],
        "errors": report["errors"],
        "error_examples": report["error_examples"],
        "gap_ms_p50_p99_max": report["gap_ms"],
        "kib_per_stream": [
            round((statistics.median(kib[number]) - baseline[number].rss_bytes / 1024) / each_has, 1)
            for number in numbers
        ],
        "kib_per_stream_peak": [
            round((max(kib[number]) - baseline[number].rss_bytes / 1024) / each_has, 1) for number in numbers
        ],
        "kib_per_minute": [round(_slope(at_s, kib[number]) * 60, 1) for number in numbers],
        "baseline_mib": [round(each.rss_bytes / 2**20, 1) for each in baseline],
        "cores": [round((last[number] - first[number]).cpu_s / took, 2) for number in numbers],
        "files": [last[number].files for number in numbers],
    }


def _slope(xs: list[float], ys: list[float]) -> float:
    """The slope of the least-squares line."""
    return statistics.linear_regression(xs, ys).slope if len(xs) > 1 else 0.0


def _pace(upstream: Contender, gap_ms: int) -> None:
    url = f"http://127.0.0.1:{upstream.port}/pace?first_ms={gap_ms}&gap_ms={gap_ms}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=5).close()


def _generated(
    plan: Plan, ports: list[int], key: str, *, streams: int, ramp_s: float, seconds: float
) -> Iterator[dict[str, Any]]:
    """Run the generator; yields its progress once a second, and its report at the end."""
    command = [
        sys.executable, "-m", "benchmarks.gateway.client", "stream", "--progress", "--key", key,
        "--prompt-tokens", str(contenders.prompt_tokens()), "--concurrency", str(streams), "--ticks", str(plan.ticks),
        "--warm-s", "0", "--ramp-s", str(ramp_s), "--seconds", str(seconds),
        *(part for port in ports for part in ("--port", str(port))),
    ]  # fmt: skip
    with subprocess.Popen(  # noqa: S603 - our own module
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise click.ClickException("the generator failed")


@click.command()
@click.option("--streams", default=10_000, show_default=True, help="Concurrent streams over all gateways.")
@click.option("--gateways", default=2, show_default=True, help="Gateway processes.")
@click.option("--ticks", default=60, show_default=True, help="Content events per stream, one per second.")
@click.option("--ramp", "ramp_s", default=40.0, show_default=True, help="Seconds in which the first streams start.")
@click.option("--duration", "duration_s", default=600.0, show_default=True, help="Seconds with all streams open.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the result to this file.")
def main(json_path: Path | None, **options: Any) -> None:
    """Hold many slow streams open and measure the gateways (twelve minutes)."""
    with tempfile.TemporaryDirectory(prefix="tenora-streams-") as folder:
        result = measure(Plan(**options), Path(folder))
    click.echo(json.dumps(result, indent=1))
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    missed = [
        what
        for what, met in (
            ("errors", not result["errors"]),
            (f"{GOAL_KIB_PER_STREAM:g} KiB a stream", max(result["kib_per_stream"]) <= GOAL_KIB_PER_STREAM),
            (f"{GOAL_KIB_PER_MINUTE:g} KiB a minute", max(result["kib_per_minute"]) <= GOAL_KIB_PER_MINUTE),
            ("one usage event a stream", result["settled"] == result["ended"] + result["errors"]),
        )
        if not met
    ]
    click.echo(f"missed: {', '.join(missed)}" if missed else "every goal met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
