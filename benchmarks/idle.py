"""Measures what an idle one-machine stack costs: the share of a core that each of its processes uses while no request
runs. It measures the stack of TENORA_HOME, and starts and stops it where it does not run.
"""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.process_usage import tree_of
from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.up_down import start_stack, stop_stack

GOAL_ENGINE_CORES: Final = 0.05
GOAL_REST_CORES: Final = 0.05
_ENGINE: Final = "engine"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def processes(settings: StackSettings) -> dict[int, str]:
    """The stack's processes, by pid: the name of the program, for the replica's agent and its engine's processes one
    each.
    """
    state = json.loads((daemon.run_folder(settings) / "state.json").read_text())
    named = dict.fromkeys(tree_of(state["supervisor_pid"]), "supervisor and guard")
    for name, program in state["programs"].items():
        for pid in tree_of(program["pid"]) if program["pid"] else ():
            named[pid] = name if name != "replica" or pid == program["pid"] else _engine_process(pid)
    return named


def _engine_process(pid: int) -> str:
    """VLLM names its processes, except the API server."""
    title = Path("/proc", str(pid), "cmdline").read_text().split("\0")[0]
    return f"{_ENGINE}: {title.removeprefix('VLLM::') if title.startswith('VLLM::') else 'API server'}"


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, and of its children that have ended and are waited for, to a hundredth of a second."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def measure(settings: StackSettings, seconds: float) -> dict[str, float]:
    """The share of a core by process name, over ``seconds``, the largest first."""
    named = processes(settings)
    before, began = {pid: cpu_s(pid) for pid in named}, time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began
    used_s: dict[str, float] = defaultdict(float)
    for pid, name in named.items():
        try:
            used_s[name] += cpu_s(pid) - before[pid]
        except FileNotFoundError:
            used_s[name] -= before[pid]  # it has ended, and its parent now counts all of it
    return {name: used_s[name] / took_s for name in sorted(used_s, key=used_s.__getitem__, reverse=True)}


def findings(cores: Mapping[str, float]) -> dict[str, Any]:
    """The shares of the engine and of everything else together, and the goals that they miss. Pure."""
    engine = sum(share for name, share in cores.items() if name.startswith(_ENGINE))
    rest = sum(cores.values()) - engine
    goals = (("the engine", engine, GOAL_ENGINE_CORES), ("everything else", rest, GOAL_REST_CORES))
    return {
        "cores": {name: round(share, 4) for name, share in cores.items()},
        "engine": round(engine, 4),
        "rest": round(rest, 4),
        "missed": [f"{what} at most {goal:g} of a core" for what, share, goal in goals if share > goal],
    }


@click.command()
@click.option("--settle", "settle_s", default=90.0, show_default=True, help="Seconds between ready and measured.")
@click.option("--seconds", default=60.0, show_default=True, help="Seconds that are measured.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the result to this file.")
def main(settle_s: float, seconds: float, json_path: Path | None) -> None:
    """Measure the CPU time of an idle stack (three minutes)."""
    settings = StackSettings()
    runs = daemon.is_up(settings)
    try:
        start_stack(settings)
        time.sleep(settle_s)
        result = findings(measure(settings, seconds))
    finally:
        if not runs:
            stop_stack(settings)
    for name, share in result["cores"].items():
        click.echo(f"{share:.4f}  {name}")
    click.echo(f"{result['engine']:.4f}  the engine together\n{result['rest']:.4f}  everything else together")
    if json_path:
        json_path.write_text(json.dumps(result, indent=1))
    click.echo(f"missed: {', '.join(result['missed'])}" if result["missed"] else "every goal met")
    sys.exit(1 if result["missed"] else 0)


if __name__ == "__main__":
    main()
