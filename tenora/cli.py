"""The `tenora` command: the whole platform on one machine."""

import json
import sys
import time

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tenora import lifetime
from tenora.base_model import materialise
from tenora.program import accepts_connections
from tenora.settings import StackSettings
from tenora.status import read_status

console = Console(stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tenora on one machine: a control plane, a gateway and a vLLM replica over embedded Postgres, Valkey and S3.

    State lives under TENORA_HOME (default .tenora).
    """


@main.command()
@click.option("--detach", is_flag=True, help="Return when everything is ready and leave it running.")
def up(*, detach: bool) -> None:
    """Start everything; without --detach, until Ctrl-C."""
    settings = StackSettings()
    bring_up(settings)
    status = read_status(settings)
    console.print(
        f"gateway {status['gateway_url']}/v1   control plane {status['control_url']}/schema   logs {settings.root}/logs"
    )
    if detach:
        return
    console.print("running; Ctrl-C stops everything")
    try:
        while lifetime.is_up(settings):
            time.sleep(0.5)
    except KeyboardInterrupt:
        bring_down(settings)


@main.command()
def down() -> None:
    """Stop everything and leave no process behind; the state stays."""
    bring_down(StackSettings())


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with the admin key.")
def status(*, as_json: bool) -> None:
    """Show what runs; exits 0 only when all of it is ready."""
    now = read_status(StackSettings())
    if as_json:
        print(json.dumps(now, indent=2))
    elif now["programs"]:
        Console().print(_programs_table(now["programs"]))
    else:
        console.print("nothing is running; start it with: tenora up --detach")
    sys.exit(0 if now["ready"] else 1)


@main.command()
@click.argument("name")
@click.option("--lines", default=50, show_default=True, help="How many of the last lines to print.")
def logs(name: str, lines: int) -> None:
    """Print the end of one program's log."""
    folder = StackSettings().root / "logs"
    file = folder / f"{name}.log"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log"))) or "none yet"
        raise click.ClickException(f"no log called {name!r}; there are: {known}")
    print("\n".join(file.read_text(errors="replace").splitlines()[-lines:]))


@main.command()
def demo() -> None:
    """Run the main job end to end: two tenants, two fine-tunes, one replica, two invoices that add up."""
    from tenora.demo.run import run_demo  # the demo's SDKs would slow every other command down

    sys.exit(run_demo(StackSettings()))


@main.command(hidden=True)
def supervise() -> None:
    """Run the programs; started by `up` and by the guard."""
    lifetime.supervise(StackSettings())


@main.command(hidden=True)
def guard() -> None:
    """Watch the supervisor; started by it."""
    lifetime.guard(StackSettings())


@main.command(hidden=True)
def register_base_model() -> None:
    """Tell the control plane about the materialised base model; a step of `up`."""
    from tenora.register import register  # needs numpy and httpx, which no other command does

    register(StackSettings())


def bring_up(settings: StackSettings) -> None:
    """Start what is not running and show progress until all of it is ready; ends the command when that fails."""
    if not lifetime.is_up(settings):
        for name, port in (
            ("TENORA_GATEWAY_PORT", settings.gateway_port),
            ("TENORA_CONTROL_PORT", settings.control_port),
        ):
            if accepts_connections(port):
                raise click.ClickException(f"port {port} is taken; set {name} to a free one")
        materialise(settings.root, console.print)
        lifetime.start(settings)
    deadline = time.monotonic() + settings.up_timeout_s
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while time.monotonic() < deadline:
            now = read_status(settings)
            if now["ready"]:
                return
            live.update(_programs_table(now["programs"]))
            time.sleep(0.25)
    stuck = [name for name, program in now["programs"].items() if program["state"] not in ("ready", "done")] or [
        "supervisor"
    ]
    raise click.ClickException(
        f"not ready after {settings.up_timeout_s:.0f} s: {', '.join(stuck)}; see: tenora logs {stuck[0]}"
    )


def bring_down(settings: StackSettings) -> None:
    """Stop everything, saying so."""
    with console.status("stopping"):
        if not lifetime.stop(settings):
            raise click.ClickException(f"some processes did not stop; see {settings.root}/logs/supervisor.log")
    console.print("stopped")


def _programs_table(programs: dict[str, dict[str, object]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("program", "state", "pid", "restarts"):
        table.add_column(column)
    for name, program in programs.items():
        pid = str(program["pid"] or "")
        table.add_row(name, str(program["state"]), pid, str(program["restarts"] or ""))
    return table
