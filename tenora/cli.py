"""The `tenora` command: the whole platform on one machine."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from tenora.base_models.command import base_models
from tenora.command_line import CommandLine, json_option, show, wants_json
from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.log_files import read_logs
from tenora.stack.status import payments_line, read_status, replica_lines
from tenora.stack.up_down import programs_table, start_stack, stop_stack

if TYPE_CHECKING:
    from tenora.control_client import ControlPlaneClient

console = Console(stderr=True)
_Access = tuple[str | None, str | None]  # API key, address of the control plane
_KEY_HELP: Final = "The tenant's API key. Prefer the TENORA_API_KEY variable: it stays out of the process list."


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tenora", message="%(prog)s %(version)s")
def main() -> None:
    """Tenora on one machine: a control plane, a gateway and a vLLM replica over embedded Postgres, Valkey and S3.

    State lives under TENORA_HOME (default .tenora). Every command acts on the platform that runs there. With --json, an
    answer or an error is one JSON document on standard output, and progress goes to standard error.
    """


@main.command(short_help="Start everything until Ctrl-C, or in the background.")
@click.option("--detach", is_flag=True, help="Return when everything is ready and leave it running.")
@json_option
def up(*, detach: bool) -> None:
    """Start everything and run until Ctrl-C, or in the background with --detach."""
    settings = StackSettings()
    start_stack(settings)
    status = read_status(settings)
    show(status, lambda: _print_addresses(console, settings, status))
    if detach:
        return
    console.print("running; Ctrl-C stops everything")
    try:
        while daemon.is_up(settings):
            time.sleep(0.5)
    except KeyboardInterrupt:
        stop_stack(settings)


@main.command()
@json_option
def down() -> None:
    """Stop every process. The state stays."""
    settings = StackSettings()
    runs = daemon.is_up(settings)
    if runs:
        stop_stack(settings)
    answer = {"stopped": runs, "home": str(settings.root)}
    show(answer, lambda: None if runs else console.print(_nothing_runs(settings), soft_wrap=True))


@main.command()
@json_option
@click.option("--secrets", is_flag=True, help="With --json: add the admin key and the passwords of Postgres and Redis.")
def status(*, secrets: bool) -> None:
    """Show every program. Exits 0 only when everything is ready."""
    settings = StackSettings()
    now = read_status(settings, secrets=secrets)
    show(now, lambda: _print_status(settings, now))
    sys.exit(0 if now["ready"] else 1)


@main.command()
@json_option
def admin_key() -> None:
    """Print the admin key of the platform under TENORA_HOME."""
    settings = StackSettings()
    key = read_status(settings, secrets=True).get("admin_key")
    if key is None:
        raise click.ClickException(_nothing_runs(settings))
    show({"admin_key": key}, lambda: print(key))


@main.command(short_help="Print the end of one program's log, or of all.")
@click.argument("program", required=False)
@click.option(
    "-n", "--lines", default=50, show_default=True, type=click.IntRange(min=0), help="Lines of each log to print first."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@json_option
def logs(program: str | None, *, lines: int, follow: bool) -> None:
    """Print the end of the log of PROGRAM; without it, of all programs, with the program's name before each line."""
    folder = StackSettings().root / "logs"
    known = sorted(path.stem for path in folder.glob("*.log"))
    if not known:
        raise click.ClickException(f"no logs under {folder}: the platform was never started there")
    if program is not None and program not in known:
        raise click.ClickException(f"no log named {program!r}; choose one of: {', '.join(known)}")
    width = max(map(len, known))
    with contextlib.suppress(KeyboardInterrupt):
        for name, line in read_logs(folder, program, last=lines, follow=follow):
            if wants_json():
                print(json.dumps({"program": name, "line": line}), flush=follow)
            else:
                print(line if program else f"{name:{width}} | {line}", flush=follow)


@main.command(short_help="Upload a PEFT adapter and wait until it is ready.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--adapter", required=True, help="Name of the adapter. It is created when the tenant has none of this name."
)
@click.option("--base-model", help="Id or Hub name of its base model; by default what adapter_config.json says.")
@click.option(
    "--promote", is_flag=True, help="Let the adapter's name serve this revision. The first ready one is served anyway."
)
@click.option("--key", envvar="TENORA_API_KEY", help=_KEY_HELP)
@click.option("--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default this machine's.")
@click.option("--timeout-s", default=600.0, show_default=True, help="Longest wait for validation.")
@json_option
def upload(
    folder: Path,
    *,
    adapter: str,
    base_model: str | None,
    promote: bool,
    key: str | None,
    control_url: str | None,
    timeout_s: float,
) -> None:
    """Upload the PEFT adapter in FOLDER and wait until it is validated. Exits 0 when it is ready.

    The same command resumes an interrupted upload. Only adapter_config.json and adapter_model.safetensors are sent.
    """
    from tenora.upload.command import run_upload  # httpx would slow every other command down

    if not key:
        raise click.ClickException("no API key; set TENORA_API_KEY to one with the scope adapters:write")
    url = control_url or _control_url()
    try:
        ready = run_upload(
            folder, adapter=adapter, base_model=base_model, promote=promote, url=url, key=key, timeout_s=timeout_s,
            console=Console(stderr=True),  # as wide as the terminal is now
        )  # fmt: skip
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; run the same command again to resume") from None
    sys.exit(0 if ready else 1)


@main.group()
@click.option("--key", envvar="TENORA_API_KEY", help=_KEY_HELP)
@click.option("--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default this machine's.")
@click.pass_context
def adapters(context: click.Context, *, key: str | None, control_url: str | None) -> None:
    """List, show and delete the adapters of a tenant."""
    context.obj = (key, control_url)


@adapters.command("list")
@json_option
@click.pass_obj
def list_adapters(access: _Access) -> None:
    """List all adapters: the newest ready revision of each, and the one that its name serves."""
    from tenora.adapters import command

    _with_client(access, lambda client: command.list_adapters(client, Console()))


@adapters.command("show")
@click.argument("name")
@json_option
@click.pass_obj
def show_adapter(access: _Access, name: str) -> None:
    """Show one adapter with its aliases and revisions, and why revisions were rejected."""
    from tenora.adapters import command

    _with_client(access, lambda client: command.show_adapter(client, name, Console()))


@adapters.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def delete_adapter(access: _Access, name: str, *, yes: bool) -> None:
    """Delete an adapter with all its revisions. This cannot be undone."""
    from tenora.adapters import command

    def delete(client: "ControlPlaneClient") -> None:
        if not yes:
            click.confirm(f"Delete {name} with all its revisions?", abort=True)
        command.delete_adapter(client, name, console)

    _with_client(access, delete)


main.add_command(base_models)


@main.command()
@json_option
@click.option(
    "--pause-s", default=2.0, show_default=True, type=click.FloatRange(0, 60), help="Pause between the two checks."
)
def doctor(*, pause_s: float) -> None:
    """Check that Redis, the replicas and Postgres agree.

    Checks the stack under TENORA_HOME, else the one that TENORA_REDIS_URL, TENORA_POSTGRES_DSN and TENORA_ENGINE_KEY
    name. Checks twice. Exits 1 when something differs both times, 2 when it could not check.
    """
    from tenora.doctor import command  # needs the control plane's tables, which no other command does

    seen, found = command.examine(StackSettings(), pause_s=pause_s)
    show(command.report(seen, found), lambda: command.print_report(seen, found))
    sys.exit(1 if found else 0)


@main.command(short_help="Run the main job end to end, with two tenants.")
def demo() -> None:
    """Run the main job end to end: two tenants, two fine-tunes, one replica, two invoices that add up."""
    from tenora.demo.run import run_demo  # the demo's SDKs would slow every other command down

    sys.exit(run_demo(StackSettings()))


@main.command(hidden=True)
def supervise() -> None:
    """Run the programs; started by `up` and by the guard."""
    daemon.supervise(StackSettings())


@main.command(hidden=True)
def guard() -> None:
    """Watch the supervisor; started by it."""
    daemon.guard(StackSettings())


@main.command(hidden=True)
def register_base_model() -> None:
    """Register the local base model with the control plane; a step of `up`."""
    from tenora.stack.register_base_model import register  # needs numpy and httpx, which no other command does

    register(StackSettings())


def _nothing_runs(settings: StackSettings) -> str:
    return f"Nothing runs under {settings.root}. Start it with: tenora up --detach, or set TENORA_HOME."


def _print_status(settings: StackSettings, now: dict[str, Any]) -> None:
    if now["programs"]:
        out = Console()
        _print_addresses(out, settings, now)
        out.print(programs_table(now["programs"]))
        for line in replica_lines(now):
            out.print(line, highlight=False, soft_wrap=True)
    else:
        console.print(_nothing_runs(settings), soft_wrap=True)


def _print_addresses(out: Console, settings: StackSettings, status: dict[str, Any]) -> None:
    """One line each, so that a terminal of 80 columns breaks no address. ``status`` is what ``read_status`` found."""
    lines = [
        f"home           {settings.root}",
        f"gateway        {status['gateway_url']}/v1",
        f"control plane  {status['control_url']} (API reference: {status['control_url']}/schema/docs)",
        payments_line(status),
    ]
    for line in lines:
        if line is not None:
            out.print(line, highlight=False, soft_wrap=True)


def _control_url() -> str:
    """The control plane that runs under TENORA_HOME, on whatever port it was started."""
    settings = StackSettings()
    url = read_status(settings).get("control_url")
    if url is None:
        raise click.ClickException(f"{_nothing_runs(settings)} For another machine, use --control-url.")
    return str(url)


def _with_client(access: _Access, work: "Callable[[ControlPlaneClient], None]") -> None:
    """Run ``work``; a refusal is shown as its message."""
    from tenora.control_client import ControlPlaneClient

    key, control_url = access
    if not key:
        raise click.ClickException(
            "no API key; set TENORA_API_KEY to one with the scopes adapters:read and adapters:write"
        )
    client = ControlPlaneClient(control_url or _control_url(), key)
    try:
        work(client)
    finally:
        client.close()
