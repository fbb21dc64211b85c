"""Starts and stops the whole stack for a user at a terminal: progress, and errors that name the fix.

``tenora.stack.definition`` says which programs there are, and ``tenora.stack.daemon`` keeps them alive.
"""

import time

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.base_model import materialize
from tenora.stack.program import accepts_connections
from tenora.stack.status import read_status, replica_lines

console = Console(stderr=True)


def start_stack(settings: StackSettings) -> None:
    """Start what is not running and show progress until everything is ready. Raises click.ClickException."""
    launch_stack(settings)
    wait_until_ready(settings)


def launch_stack(settings: StackSettings) -> None:
    """Start the supervisor if it does not run; returns before its programs are ready. Raises click.ClickException."""
    if not daemon.is_up(settings):
        for name, port in (
            ("TENORA_GATEWAY_PORT", settings.gateway_port),
            ("TENORA_CONTROL_PORT", settings.control_port),
        ):
            if accepts_connections(port):
                raise click.ClickException(f"port {port} is taken; set {name} to a free one")
        materialize(settings.root, console.print)
        daemon.start(settings)


def wait_until_ready(settings: StackSettings) -> None:
    """Show the programs' progress until all are ready. Raises click.ClickException after ``up_timeout_s``."""
    deadline = time.monotonic() + settings.up_timeout_s
    shown: dict[str, object] = {}
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while time.monotonic() < deadline:
            now = read_status(settings)
            if console.is_terminal:
                live.update(programs_table(now["programs"]))
            else:  # a line for each program that has come up
                _print_ready(now["programs"], shown)
            if now["ready"]:
                return
            time.sleep(0.25)
    stuck = [name for name, program in now["programs"].items() if program["state"] not in ("ready", "done")] or [
        "supervisor"
    ]
    reasons = "".join(f"\n{line}" for line in replica_lines(now))
    raise click.ClickException(
        f"not ready after {settings.up_timeout_s:.0f} s: {', '.join(stuck)}; see: tenora logs {stuck[0]}{reasons}"
    )


def _print_ready(programs: dict[str, dict[str, object]], shown: dict[str, object]) -> None:
    for name, program in programs.items():
        if program["state"] in ("ready", "done") and shown.get(name) != program["state"]:
            shown[name] = program["state"]
            console.print(f"{name}: {program['state']}", highlight=False)


def stop_stack(settings: StackSettings) -> None:
    """Stop everything and report it. Raises click.ClickException when something still runs."""
    with console.status("stopping"):
        if not daemon.stop(settings):
            raise click.ClickException(f"some processes did not stop; see {settings.root}/logs/supervisor.log")
    console.print("stopped")


def programs_table(programs: dict[str, dict[str, object]]) -> Table:
    """Each program with its state, as `tenora status` shows it."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("program", "state", "pid", "restarts"):
        table.add_column(column)
    for name, program in programs.items():
        pid = str(program["pid"] or "")
        table.add_row(name, str(program["state"]), pid, str(program["restarts"] or ""))
    return table
