"""The `tenora` command: the whole platform on one machine."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console

from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.status import payments_line, read_status
from tenora.stack.up_down import programs_table, start_stack, stop_stack

if TYPE_CHECKING:
    from tenora.control_client import ControlPlaneClient

console = Console(stderr=True)
_Access = tuple[str | None, str | None]  # API key, address of the control plane
_KEY_HELP: Final = "The tenant's API key. Prefer the TENORA_API_KEY variable: it stays out of the process list."


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tenora on one machine: a control plane, a gateway and a vLLM replica over embedded Postgres, Valkey and S3.

    State lives under TENORA_HOME (default .tenora). Every command acts on the platform that runs there.
    """


@main.command(short_help="Start everything until Ctrl-C, or in the background.")
@click.option("--detach", is_flag=True, help="Return when everything is ready and leave it running.")
def up(*, detach: bool) -> None:
    """Start everything and run until Ctrl-C, or in the background with --detach."""
    settings = StackSettings()
    start_stack(settings)
    status = read_status(settings)
    _print_addresses(console, settings, status)
    if detach:
        return
    console.print("running; Ctrl-C stops everything")
    try:
        while daemon.is_up(settings):
            time.sleep(0.5)
    except KeyboardInterrupt:
        stop_stack(settings)


@main.command()
def down() -> None:
    """Stop every process. The state stays."""
    settings = StackSettings()
    if not daemon.is_up(settings):
        console.print(_nothing_runs(settings), soft_wrap=True)
        return
    stop_stack(settings)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with the admin key.")
@click.option("--secrets", is_flag=True, help="Print the passwords of Postgres and Redis as well.")
def status(*, as_json: bool, secrets: bool) -> None:
    """Show every program. Exits 0 only when everything is ready."""
    settings = StackSettings()
    now = read_status(settings, secrets=secrets)
    if as_json:
        print(json.dumps(now, indent=2))
    elif now["programs"]:
        out = Console()
        _print_addresses(out, settings, now)
        out.print(programs_table(now["programs"]))
    else:
        console.print(_nothing_runs(settings), soft_wrap=True)
    sys.exit(0 if now["ready"] else 1)


@main.command()
def admin_key() -> None:
    """Print the admin key of the platform under TENORA_HOME."""
    settings = StackSettings()
    key = read_status(settings).get("admin_key")
    if key is None:
        raise click.ClickException(_nothing_runs(settings))
    print(key)


@main.command()
@click.argument("name")
@click.option("--lines", default=50, show_default=True, help="How many of the last lines to print.")
def logs(name: str, lines: int) -> None:
    """Print the end of one program's log."""
    folder = StackSettings().root / "logs"
    file = folder / f"{name}.log"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log")))
        if not known:
            raise click.ClickException(f"no logs under {folder}: the platform was never started there")
        raise click.ClickException(f"no log named {name!r}; choose one of: {known}")
    print("\n".join(file.read_text(errors="replace").splitlines()[-lines:]))


@main.command(short_help="Upload a PEFT adapter and wait until it is ready.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--adapter", required=True, help="Name of the adapter. It is created when the tenant has none of this name."
)
@click.option("--base-model", help="Id or Hub name of its base model; by default what adapter_config.json says.")
@click.option("--key", envvar="TENORA_API_KEY", help=_KEY_HELP)
@click.option("--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default this machine's.")
@click.option("--timeout-s", default=600.0, show_default=True, help="Longest wait for validation.")
def upload(
    folder: Path, *, adapter: str, base_model: str | None, key: str | None, control_url: str | None, timeout_s: float
) -> None:
    """Upload the PEFT adapter in FOLDER and wait until it is validated. Exits 0 when it is ready.

    The same command resumes an interrupted upload. Only adapter_config.json and adapter_model.safetensors are sent.
    """
    from tenora.control_client import ControlPlaneError  # httpx would slow every other command down
    from tenora.upload.command import run_upload

    if not key:
        raise click.ClickException("no API key; set TENORA_API_KEY to one with the scope adapters:write")
    url = control_url or _control_url()
    try:
        ready = run_upload(
            folder, adapter=adapter, base_model=base_model, url=url, key=key, timeout_s=timeout_s,
            console=Console(stderr=True),  # as wide as the terminal is now
        )  # fmt: skip
    except ControlPlaneError as error:
        raise click.ClickException(str(error)) from error
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
@click.pass_obj
def list_adapters(access: _Access) -> None:
    """List all adapters: the newest ready revision of each, and the one that its name serves."""
    from tenora.adapters import command

    _with_client(access, lambda client: command.list_adapters(client, Console()))


@adapters.command("show")
@click.argument("name")
@click.pass_obj
def show_adapter(access: _Access, name: str) -> None:
    """Show one adapter with its aliases and revisions."""
    from tenora.adapters import command

    _with_client(access, lambda client: command.show_adapter(client, name, Console()))


@adapters.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete_adapter(access: _Access, name: str, *, yes: bool) -> None:
    """Delete an adapter with all its revisions. This cannot be undone."""
    from tenora.adapters import command

    def delete(client: "ControlPlaneClient") -> None:
        if not yes:
            click.confirm(f"Delete {name} with all its revisions?", abort=True)
        command.delete_adapter(client, name, console)

    _with_client(access, delete)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--pause-s", default=2.0, show_default=True, type=click.FloatRange(0, 60), help="Pause between the two checks."
)
def doctor(*, as_json: bool, pause_s: float) -> None:
    """Check that Redis, the replicas and Postgres agree.

    Checks the stack under TENORA_HOME, else the one that TENORA_REDIS_URL, TENORA_POSTGRES_DSN and TENORA_ENGINE_KEY
    name. Checks twice. Exits 1 when something differs both times, 2 when it could not check.
    """
    from tenora.doctor.command import examine  # needs the control plane's tables, which no other command does

    sys.exit(examine(StackSettings(), pause_s=pause_s, as_json=as_json))


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
    from tenora.control_client import ControlPlaneClient, ControlPlaneError

    key, control_url = access
    if not key:
        raise click.ClickException(
            "no API key; set TENORA_API_KEY to one with the scopes adapters:read and adapters:write"
        )
    client = ControlPlaneClient(control_url or _control_url(), key)
    try:
        work(client)
    except ControlPlaneError as error:
        raise click.ClickException(str(error)) from error
    finally:
        client.close()
