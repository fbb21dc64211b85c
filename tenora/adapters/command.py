"""`tenora adapters`: list and show a tenant's adapters, choose what their names serve, and delete them."""

from typing import Any, Final

import click

from tenora.client import Tenora
from tenora.command_line import json_option, show, table
from tenora.control_access import Access, tenant_access, tenant_key_option, url_option, with_client

_COLUMNS: Final = ("name", "base_model", "newest_ready", "serves")
_PROD: Final = "prod"  # as in core.contracts.routes, which takes long to import
_alias_option: Final = click.option("--alias", default=_PROD, show_default=True, help="The alias to move.")


@click.group()
@tenant_key_option
@url_option
@click.pass_context
def adapters(context: click.Context, *, key: str | None, control_url: str | None) -> None:
    """List, show and delete the adapters of a tenant, and choose which revisions they serve."""
    context.obj = (key, control_url)


@adapters.command("list")
@tenant_access
@json_option
def list_adapters(access: Access) -> None:
    """List all adapters: the newest ready revision of each, and the one that its name serves."""
    found = with_client(access, Tenora.adapters)
    rows = [[each[name] for name in _COLUMNS] for each in found]
    none = "no adapters yet; upload one with: tenora upload FOLDER --adapter NAME"
    show({"data": found}, lambda: table(_COLUMNS, rows) if rows else none)


@adapters.command("show")
@click.argument("name")
@tenant_access
@json_option
def show_adapter(access: Access, name: str) -> None:
    """Show one adapter with its aliases and revisions, and why revisions were rejected."""

    def read(client: Tenora) -> None:
        found = client.adapter(name) | {"aliases": client.aliases(name), "revisions": client.revisions(name)}
        show(found, lambda: "\n".join(_details(found)))

    with_client(access, read)


def _details(adapter: dict[str, Any]) -> list[str]:
    names = ("name", "id", "base_model", "newest_ready", "serves", "rank", "pinned", "created_at")
    lines = [f"{name}: {'-' if adapter[name] is None else adapter[name]}" for name in names]
    lines += [f"alias {alias['name']}: {_target(alias)}" for alias in adapter["aliases"]]
    for revision in adapter["revisions"]:
        stage = f" ({revision['stage']})" if revision["stage"] else ""
        lines.append(f"revision {revision['id']}: {revision['status']}{stage}, {revision['created_at']}")
        problems = (revision["report"] or {}).get("problems", ())
        lines += [f"  {problem['message']} ({problem['code']})" for problem in problems]
    return lines


def _target(alias: dict[str, Any]) -> str:
    """What an alias serves: one revision, or several with their weights."""
    return alias.get("revision") or ", ".join(f"{each} {weight}" for each, weight in alias["weights"].items())


@adapters.command()
@click.argument("name")
@click.argument("revision", required=False)
@_alias_option
@tenant_access
@json_option
def promote(access: Access, name: str, revision: str | None, *, alias: str) -> None:
    """Let calls of NAME get REVISION, by default its newest ready one."""

    def move(client: Tenora) -> None:
        target = revision or client.adapter(name)["newest_ready"]
        if target is None:
            raise click.ClickException(f"{name} has no ready revision yet")
        _move(client, name, alias, target)

    with_client(access, move)


@adapters.command()
@click.argument("name")
@_alias_option
@tenant_access
@json_option
def rollback(access: Access, name: str, *, alias: str) -> None:
    """Let calls of NAME get the ready revision before the one that they get now; of a split, before its newest one."""

    def move(client: Tenora) -> None:
        served = next((each for each in client.aliases(name) if each["name"] == alias), None)
        if served is None:
            raise click.ClickException(f"{name} has no alias {alias}")
        ready = [each["id"] for each in client.revisions(name) if each["status"] == "ready"]
        newest = next((place for place, each in enumerate(ready) if each in served["weights"]), len(ready))
        if newest + 1 >= len(ready):
            raise click.ClickException(f"{name} has no ready revision before {_target(served)}")
        _move(client, name, alias, ready[newest + 1])

    with_client(access, move)


def _move(client: Tenora, name: str, alias: str, revision: str) -> None:
    moved = client.move_alias(name, alias, revision)
    before = f", before {_target(moved['previous'])}" if moved["previous"] else ""
    late = "" if moved.get("acknowledged", True) else "; some gateways have not confirmed it yet and follow in seconds"
    show(moved, lambda: f"{name}:{alias} serves {revision}{before}{late}")


@adapters.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@tenant_access
@json_option
def delete_adapter(access: Access, name: str, *, yes: bool) -> None:
    """Delete an adapter with all its revisions. This cannot be undone. Also: rm."""

    def delete(client: Tenora) -> None:
        if not yes:
            click.confirm(f"Delete {name} with all its revisions?", abort=True)
        client.delete_adapter(name)
        show({"deleted": name}, lambda: f"deleted {name}: calls of it are refused, and its files are removed")

    with_client(access, delete)


adapters.add_command(delete_adapter, "rm")
