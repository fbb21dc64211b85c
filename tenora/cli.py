"""The `tenora` command: the whole platform on one machine."""

import json
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.status import read_status
from tenora.stack.up_down import programs_table, start_stack, stop_stack

console = Console(stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tenora on one machine: a control plane, a gateway and a vLLM replica over embedded Postgres, Valkey and S3.

    State lives under TENORA_HOME (default .tenora).
    """


@main.command()
@click.option("--detach", is_flag=True, help="Return when everything is ready and leave it running.")
def up(*, detach: bool) -> None:
    """Start everything and run until Ctrl-C, or in the background with --detach."""
    settings = StackSettings()
    start_stack(settings)
    status = read_status(settings)
    console.print(
        f"gateway {status['gateway_url']}/v1   control plane {status['control_url']}/schema   logs {settings.root}/logs"
    )
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
    stop_stack(StackSettings())


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with the admin key.")
@click.option("--secrets", is_flag=True, help="Print the passwords of Postgres and Redis as well.")
def status(*, as_json: bool, secrets: bool) -> None:
    """Show every program. Exits 0 only when everything is ready."""
    now = read_status(StackSettings(), secrets=secrets)
    if as_json:
        print(json.dumps(now, indent=2))
    elif now["programs"]:
        Console().print(programs_table(now["programs"]))
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
        raise click.ClickException(f"no log named {name!r}; choose one of: {known}")
    print("\n".join(file.read_text(errors="replace").splitlines()[-lines:]))


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--adapter", required=True, help="Name of the adapter. It is created when the tenant has none of this name."
)
@click.option("--base-model", help="Id or Hub name of its base model; by default what adapter_config.json says.")
@click.option(
    "--key",
    envvar="TENORA_API_KEY",
    help="The tenant's API key. Prefer the TENORA_API_KEY variable: it stays out of the process list.",
)
@click.option("--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default this machine's.")
@click.option("--timeout-s", default=600.0, show_default=True, help="Longest wait for validation.")
def upload(
    folder: Path, *, adapter: str, base_model: str | None, key: str | None, control_url: str | None, timeout_s: float
) -> None:
    """Upload the PEFT adapter in FOLDER and wait until it is validated. Exits 0 when it is ready.

    The same command resumes an interrupted upload. Only adapter_config.json and adapter_model.safetensors are sent.
    """
    from tenora.upload.client import UploadFailed  # httpx would slow every other command down
    from tenora.upload.command import run_upload

    if not key:
        raise click.ClickException("no API key; set TENORA_API_KEY to one with the scope adapters:write")
    url = control_url or f"http://127.0.0.1:{StackSettings().control_port}"
    try:
        ready = run_upload(
            folder, adapter=adapter, base_model=base_model, url=url, key=key, timeout_s=timeout_s,
            console=Console(stderr=True),  # as wide as the terminal is now
        )  # fmt: skip
    except UploadFailed as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; run the same command again to resume") from None
    sys.exit(0 if ready else 1)


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


@main.command()
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
