"""`tenora batches`: what a tenant's batches do, and an admin's pause of all of them.

As in ``tenora.cli``, a command imports what it needs when it runs.
"""

import time
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from tenora.client import Tenora
from tenora.command_line import dollars, json_option, show, wants_json
from tenora.control_access import Access, key_option, send, tenant_key_option, url_option, with_client

_BATCHES: Final = "/v1/batches"
_PAUSE: Final = "/api/v1/admin/batches/pause"
_ENDED: Final = ("failed", "completed", "expired", "cancelled")
_POLL_S: Final = 1.0


@click.group()
@url_option
@click.pass_context
def batches(context: click.Context, *, control_url: str | None) -> None:
    """List, watch and cancel a tenant's batches; as an admin, pause all batches."""
    context.obj = control_url


@batches.command("list")
@tenant_key_option
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many, newest first.")
@json_option
@click.pass_obj
def list_batches(control_url: str | None, *, key: str | None, limit: int) -> None:
    """List the newest batches."""

    def read(client: Tenora) -> None:
        found = client.call("GET", _BATCHES, params={"limit": str(limit)}).json()
        show(found, lambda: "\n".join(map(line_of, found["data"])) or "no batches")

    with_client((key, control_url), read)


@batches.command("show")
@click.argument("batch_id")
@tenant_key_option
@json_option
@click.pass_obj
def show_batch(control_url: str | None, batch_id: str, *, key: str | None) -> None:
    """Show one batch: how far it is, when it should end, what it costs, and what is wrong with its lines."""
    with_client((key, control_url), lambda client: _show(_find(client, batch_id)))


@batches.command()
@click.argument("batch_id")
@tenant_key_option
@json_option
@click.pass_obj
def watch(control_url: str | None, batch_id: str, *, key: str | None) -> None:
    """Show the progress of a batch until it has ended. Exits 0 if it was completed."""

    def read(client: Tenora) -> None:
        found = _until_ended(client, batch_id)
        _show(found)
        if found["status"] != "completed":
            click.get_current_context().exit(1)

    with_client((key, control_url), read)


@batches.command()
@click.argument("batch_id")
@tenant_key_option
@json_option
@click.pass_obj
def cancel(control_url: str | None, batch_id: str, *, key: str | None) -> None:
    """Send no further line of a batch. What has ended is kept and charged."""

    def call(client: Tenora) -> None:
        found = client.call("POST", f"{_path(batch_id)}/cancel").json()
        show(found, lambda: line_of(found))

    with_client((key, control_url), call)


@batches.command()
@key_option
@click.option("--reason", required=True, help="Why, for the next operator.")
@json_option
@click.pass_obj
def pause(control_url: str | None, *, key: str | None, reason: str) -> None:
    """Pause all batches of all tenants, as an admin. Other requests go on."""
    access: Access = (key, control_url)
    send(access, "PUT", _PAUSE, {"reason": reason}, lambda _: "all batches pause")


@batches.command()
@key_option
@json_option
@click.pass_obj
def resume(control_url: str | None, *, key: str | None) -> None:
    """Let all batches go on, as an admin."""
    send((key, control_url), "DELETE", _PAUSE, None, lambda _: "batches go on")


def _path(batch_id: str) -> str:
    return f"{_BATCHES}/{quote(batch_id, safe='')}"


def _find(client: Tenora, batch_id: str) -> dict[str, Any]:
    found: dict[str, Any] = client.call("GET", _path(batch_id)).json()
    return found


def _show(batch: dict[str, Any]) -> None:
    show(batch, lambda: "\n".join(details_of(batch)))


def _until_ended(client: Tenora, batch_id: str) -> dict[str, Any]:
    """Poll a batch, with a bar of the lines that have ended."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
    with Progress(*columns, console=Console(stderr=True), disable=wants_json()) as bar:
        task = bar.add_task(batch_id, total=None, note="")
        while True:
            found = _find(client, batch_id)
            counts = found["request_counts"]
            bar.update(
                task,
                total=counts["total"] or None,
                completed=counts["completed"] + counts["failed"],
                note=_note(found),
                description=f"{batch_id} {found['status']}",
            )
            if found["status"] in _ENDED:
                return found
            time.sleep(_POLL_S)


def _note(batch: dict[str, Any]) -> str:
    """What a person wants to know beside the bar."""
    parts = [f"{batch['request_counts']['failed']} failed", dollars(batch["cost_nanos"])]
    if batch["paused"]:
        parts.append("paused by an admin")
    if batch["service_class"] != "batch":
        parts.append(f"deadline in danger: runs as {batch['service_class']}")
    if batch["estimated_completion"]:
        parts.append(f"ends about {_instant(batch['estimated_completion'])}")
    return ", ".join(parts)


def line_of(batch: dict[str, Any]) -> str:
    """A batch in one line."""
    counts = batch["request_counts"]
    return f"{batch['id']}  {batch['status']}  {counts['completed']} of {counts['total']} lines, {_note(batch)}"


def details_of(batch: dict[str, Any]) -> list[str]:
    """A batch in lines, with its files and what is wrong with its lines."""
    found = [line_of(batch), f"expires {_instant(batch['expires_at'])}"]
    found += [f"{name}: {batch[name]}" for name in ("output_file_id", "error_file_id") if batch[name]]
    return found + [each["message"] for each in (batch["errors"] or {"data": []})["data"]]


def _instant(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
