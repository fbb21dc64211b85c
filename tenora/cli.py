"""The `tenora` command: the whole platform on one machine.

This is the list of its commands. What each does is imported when it runs, so that none waits for the others' libraries.
"""

import sys
from pathlib import Path

import click

from tenora.account.command import invoices, keys, quota, requests, usage
from tenora.adapters.command import adapters
from tenora.base_models.command import base_models
from tenora.batches.command import batches
from tenora.chat.command import chat
from tenora.command_line import CommandLine, json_option, show
from tenora.control_access import Access, tenant_access, with_client
from tenora.fleet.command import fleet, top
from tenora.login.command import login, logout
from tenora.pools.command import pools
from tenora.ray_placer.command import ray_placer


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tenora", message="%(prog)s %(version)s")
def main() -> None:
    """Tenora on one machine: a control plane, a gateway and a vLLM replica over embedded Postgres, Valkey and S3.

    State lives under TENORA_HOME (default .tenora). Every command acts on the platform that runs there, or on the one
    that it is given; those of a tenant on the one where `tenora login` has signed in. With --json, an answer or an
    error is one JSON document on standard output, and progress goes to standard error. Exits 0 when done, 1 when
    refused or failed, 2 for wrong arguments or settings.
    """


@main.command(short_help="Start everything until Ctrl-C, or in the background.")
@click.option("--detach", is_flag=True, help="Return when everything is ready and leave it running.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 16),
    help="Replicas, each bound to cores of its own [default: TENORA_REPLICAS or 1].",
)
@json_option
def up(*, detach: bool, replicas: int | None) -> None:
    """Start everything and run until Ctrl-C, or in the background with --detach."""
    from tenora.stack import command

    command.up(detach=detach, replicas=replicas)


@main.command()
@json_option
def down() -> None:
    """Stop every process. The state stays."""
    from tenora.stack import command

    command.down()


@main.command()
@json_option
@click.option("--secrets", is_flag=True, help="With --json: add the admin key and the passwords of Postgres and Redis.")
def status(*, secrets: bool) -> None:
    """Show every program. Exits 0 only when everything is ready."""
    from tenora.stack import command

    sys.exit(0 if command.status(secrets=secrets) else 1)


@main.command()
@json_option
def admin_key() -> None:
    """Print the admin key of the platform under TENORA_HOME."""
    from tenora.stack import command

    command.admin_key()


@main.command(short_help="Print the end of one program's log, or of all.")
@click.argument("program", required=False)
@click.option(
    "-n", "--lines", default=50, show_default=True, type=click.IntRange(min=0), help="Lines of each log to print first."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@json_option
def logs(program: str | None, *, lines: int, follow: bool) -> None:
    """Print the end of the log of PROGRAM; without it, of all programs, with the program's name before each line."""
    from tenora.stack import command

    command.logs(program, last=lines, follow=follow)


@main.command(short_help="Upload a PEFT adapter and wait until it is ready.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--adapter", required=True, help="Name of the adapter. It is created when the tenant has none of this name."
)
@click.option("--base-model", help="Id or Hub name of its base model; by default what adapter_config.json says.")
@click.option(
    "--promote", is_flag=True, help="Let the adapter's name serve this revision. The first ready one is served anyway."
)
@tenant_access
@click.option("--timeout-s", default=600.0, show_default=True, help="Longest wait for validation.")
@json_option
def upload(
    access: Access, folder: Path, *, adapter: str, base_model: str | None, promote: bool, timeout_s: float
) -> None:
    """Upload the PEFT adapter in FOLDER and wait until it is validated. Exits 0 when it is ready.

    The same command resumes an interrupted upload. Only adapter_config.json and adapter_model.safetensors are sent.
    """
    from rich.console import Console

    from tenora.upload.command import run_upload

    try:
        ready = with_client(
            access,
            lambda client: run_upload(
                folder, client=client, adapter=adapter, base_model=base_model, promote=promote, timeout_s=timeout_s,
                console=Console(stderr=True),  # as wide as the terminal is now
            ),
        )  # fmt: skip
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; run the same command again to resume") from None
    sys.exit(0 if ready else 1)


for each in (
    adapters, base_models, batches, chat, fleet, invoices, keys, login, logout, pools, quota, ray_placer, requests, top,
    usage,
):  # fmt: skip
    main.add_command(each)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str) -> None:
    """Print a script that completes commands and options in SHELL: eval "$(tenora completion bash)"."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None, "click has these three"
    script = complete(main, {}, "tenora", "_TENORA_COMPLETE").source()
    show({"script": script}, lambda: script)


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
    from tenora.doctor import command
    from tenora.settings import StackSettings

    seen, found = command.examine(StackSettings(), pause_s=pause_s)
    show(command.report(seen, found), lambda: command.print_report(seen, found))
    sys.exit(1 if found else 0)


@main.command(short_help="Run the main job end to end, with two tenants.")
def demo() -> None:
    """Run the main job end to end: two tenants, two fine-tunes, one replica, two invoices that add up."""
    from tenora.demo.run import run_demo
    from tenora.settings import StackSettings

    sys.exit(run_demo(StackSettings()))


@main.command(hidden=True)
def supervise() -> None:
    """Run the programs; started by `up` and by the guard."""
    from tenora.settings import StackSettings
    from tenora.stack import daemon

    daemon.supervise(StackSettings())


@main.command(hidden=True)
def guard() -> None:
    """Watch the supervisor; started by it."""
    from tenora.settings import StackSettings
    from tenora.stack import daemon

    daemon.guard(StackSettings())


@main.command(hidden=True)
def register_base_model() -> None:
    """Register the local base model with the control plane; a step of `up`."""
    from tenora.settings import StackSettings
    from tenora.stack.register_base_model import register

    register(StackSettings())
