"""`tenora base-models`: register a base model from its checkpoint's folder, store its weights, and list what is there.

As in ``tenora.cli``, a command imports what it needs when it runs.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from core.rank_classes import VLLM_RANKS
from tenora.client import Tenora
from tenora.command_line import json_option, show
from tenora.control_access import Access, key_option, url_option, with_admin

if TYPE_CHECKING:
    from core.settings import S3Settings

_REPLICA_NAME: Final = re.compile(r"[^a-z0-9]+")


@click.group()
@key_option
@url_option
@click.pass_context
def base_models(context: click.Context, *, key: str | None, control_url: str | None) -> None:
    """Register base models and list them, as an admin."""
    context.obj = (key, control_url)


@base_models.command("list")
@json_option
@click.pass_obj
def list_base_models(access: Access) -> None:
    """List the registered base models."""

    def read(client: Tenora) -> None:
        found = client.items("/api/v1/admin/base-models")
        lines = [f"{each['id']}  {each['hub_name']}  context {each['context_tokens']}" for each in found]
        show({"data": found}, lambda: "\n".join(lines))

    with_admin(access, read)


@base_models.command("add")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--id", "model_id", required=True, help="Id that callers use: lower-case letters, digits and . _ -")
@click.option("--hub-name", help="Its name on the Hub, ORG/MODEL, which adapters name; by default as config.json says.")
@click.option("--context-tokens", type=click.IntRange(64), help="Longest prompt plus output that its replicas serve.")
@click.option("--rank-max", type=click.Choice(list(map(str, VLLM_RANKS))), help="Largest rank that its replicas serve.")
@click.option(
    "--task", type=click.Choice(["generate", "embed"]), default="generate", show_default=True, help="What it is for."
)
@json_option
@click.pass_obj
def add_base_model(
    access: Access,
    folder: Path,
    *,
    model_id: str,
    hub_name: str | None,
    context_tokens: int | None,
    rank_max: str | None,
    task: str,
) -> None:
    """Check the checkpoint in FOLDER and register it as a base model. The same command again changes nothing."""
    import msgspec

    from data_plane.engine.settings import ReplicaSettings
    from tenora.base_models.checkpoint import read_checkpoint
    from tenora.stack.program import free_port

    defaults = ReplicaSettings.model_fields
    context = context_tokens or int(defaults["engine_context_tokens"].default)
    rank = int(rank_max or defaults["engine_rank_max"].default)
    try:
        spec = read_checkpoint(folder, model_id=model_id, hub_name=hub_name)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if context_tokens is not None and context_tokens > spec.context_tokens:
        raise click.ClickException(f"--context-tokens: the model was trained for at most {spec.context_tokens}")
    served = msgspec.structs.replace(
        spec, context_tokens=min(spec.context_tokens, context), rank_max=rank, rank_classes=(rank,), task=task
    )

    def register(client: Tenora) -> None:
        made = client.call("POST", "/api/v1/admin/base-models", msgspec.to_builtins(served)).json()
        own = {
            "TENORA_REPLICA_ID": f"rep_{_REPLICA_NAME.sub('_', model_id)[:36]}",
            "TENORA_BASE_MODEL": model_id,
            "TENORA_MODEL_PATH": str(folder.absolute()),
            "TENORA_ENGINE_CONTEXT_TOKENS": str(served.context_tokens),
            "TENORA_ENGINE_RANK_MAX": str(rank),
            "TENORA_ENGINE_TASK": task,
            "TENORA_ENGINE_PORT": str(free_port()),
        }
        facts = f"registered {model_id} ({made['hub_name']}): context {served.context_tokens}, rank up to {rank}"
        following = _next_step(own)
        show(made | {"replica": own}, lambda: f"{facts}\nNext, start a replica that serves it, {following}")

    with_admin(access, register)


@base_models.command("push")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def push_base_model(folder: Path) -> None:
    """Store the weights in FOLDER in the object store, for replicas with TENORA_MODEL_DIGEST.

    It goes to the stack that runs on this machine, else to the store of the TENORA_S3_… settings. The same command
    again goes on where it was interrupted.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from adapters.base_weights import WeightStore, read_weights
    from adapters.object_store.revision_store import RevisionStore
    from adapters.object_store.s3 import Bucket
    from adapters.settings import StoreSettings
    from core.errors import AppError

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        store = WeightStore(RevisionStore(Bucket(_object_store(), StoreSettings())))
        with Progress(*columns, console=Console(stderr=True)) as progress:
            reading = progress.add_task("reading", total=None)
            weights = read_weights(folder)
            progress.update(reading, visible=False)
            sending = progress.add_task("sending", total=weights.size_bytes)
            store.put(folder, weights, lambda sent: progress.advance(sending, sent))
    except AppError as error:
        raise click.ClickException(error.message) from error
    show({"digest": weights.digest, "size_bytes": weights.size_bytes}, lambda: weights.digest)


def _object_store() -> "S3Settings":
    from core.settings import S3Settings
    from tenora.settings import StackSettings
    from tenora.stack import daemon
    from tenora.stack.status import running_stack

    settings = StackSettings()
    return running_stack(settings).object_store() if daemon.is_up(settings) else S3Settings()


def _next_step(own: dict[str, str]) -> str:
    """How to start a replica with these settings: on this machine one command, which reads the rest from a file."""
    from tenora.settings import StackSettings
    from tenora.stack import daemon
    from tenora.stack.status import running_stack

    settings, start = StackSettings(), f"{sys.executable} -m data_plane replica"
    if not daemon.is_up(settings):
        lines = "".join(f"{name}={shlex.quote(value)} \\\n" for name, value in own.items())
        return f"with the other settings of docs/how-to/run-in-production.md:\n\n{lines}{start}"
    file = settings.root / "replicas" / f"{own['TENORA_REPLICA_ID']}.env"
    file.parent.mkdir(exist_ok=True)
    file.touch(mode=0o600)
    shared = running_stack(settings).replica_environment()
    file.write_text("".join(f"{name}={shlex.quote(value)}\n" for name, value in (shared | own).items()))
    return f"in another terminal:\n\n(set -a; . {shlex.quote(str(file))}; exec {start})"
