"""`tenora fleet` and `tenora top`: what runs where, and what gets no requests.

As in ``tenora.cli``, a command imports what it needs when it runs.
"""

from typing import Any, Final
from urllib.parse import quote

import click

from tenora.client import Tenora
from tenora.command_line import json_option, show, table
from tenora.control_access import Access, key_option, send, url_option, with_admin

_REPLICAS: Final = "/api/v1/admin/replicas"
_CORDONS: Final = "/api/v1/admin/cordons"
_COLUMNS: Final = (
    "id",
    "base_model",
    "rank_max",
    "state",
    "node",
    "running_requests",
    "waiting_requests",
    "pages_free",
)


@click.group()
@key_option
@url_option
@click.pass_context
def fleet(context: click.Context, *, key: str | None, control_url: str | None) -> None:
    """List replicas, keep requests from them, and change how many run on this machine."""
    context.obj = (key, control_url)


@fleet.command("list")
@json_option
@click.pass_obj
def list_fleet(access: Access) -> None:
    """List all replicas, also those that start or have just failed, and all cordons."""

    def read(client: Tenora) -> None:
        lists = {"replicas": _REPLICAS, "cordons": _CORDONS}
        found = {name: client.call("GET", path).json()["data"] for name, path in lists.items()}
        show(found, lambda: "\n".join(lines_of(**found)))

    with_admin(access, read)


def lines_of(replicas: list[dict[str, Any]], cordons: list[dict[str, Any]]) -> list[str]:
    """A line for each replica, each reason and each cordon. No cell is cut off, so that ids can be copied."""
    lines = [table(_COLUMNS, [[each[name] for name in _COLUMNS] for each in replicas])]
    lines += [f"replica {each['id']} is {each['state']}: {each['reason']}" for each in replicas if each["reason"]]
    return lines + [f"cordoned {each['kind']} {each['name']}: {each['reason']}" for each in cordons]


@fleet.command()
@click.argument("pool")
@click.option("--limit", type=click.IntRange(1, 200), default=10, show_default=True, help="How many decisions.")
@json_option
@click.pass_obj
def explain(access: Access, pool: str, *, limit: int) -> None:
    """Say why a POOL should have as many replicas as it should: its last decisions, the newest first."""

    def read(client: Tenora) -> None:
        path = f"/api/v1/admin/pools/{quote(pool, safe='')}/decisions?limit={limit}"
        found = client.call("GET", path).json()
        lines = [line for decision in found["data"] for line in explained(decision)]
        show(found, lambda: "\n".join(lines) or "no decision yet: the fleet process has not seen the pool")

    with_admin(access, read)


def explained(decision: dict[str, Any]) -> list[str]:
    """A decision in lines: what changed and why, how many replicas each signal asked for, and the signals."""
    inputs = decision["inputs"]
    bounds = inputs["bounds"]
    change = f"{decision['replicas_before']} -> {decision['replicas']} replicas: {decision['reason']}"
    lines = [f"{decision['created_at']}  {change}  (allowed {bounds['least']}-{bounds['most']})"]
    if asks := {name: count for name, count in inputs["asks"].items() if count}:
        lines.append("    asked for: " + ", ".join(f"{name} {count}" for name, count in asks.items()))
    if signals := inputs["signals"]:
        shown = (f"{name} {value:g}" for name, value in signals.items() if value)
        lines.append("    signals: " + (", ".join(shown) or "no load"))
    return lines


@fleet.command()
@click.argument("replica_id")
@click.option("--force", is_flag=True, help="Also the last one that serves a base model or a rank class.")
@json_option
@click.pass_obj
def drain(access: Access, replica_id: str, *, force: bool) -> None:
    """Let a replica finish its requests and get no new ones, until it restarts or `undrain`."""
    path = f"{_REPLICAS}/{quote(replica_id, safe='')}/drain"
    send(access, "POST", path, {"force": force}, lambda _: f"{replica_id} drains")


@fleet.command()
@click.argument("replica_id")
@json_option
@click.pass_obj
def undrain(access: Access, replica_id: str) -> None:
    """Let a drained replica get requests again."""
    path = f"{_REPLICAS}/{quote(replica_id, safe='')}/drain"
    send(access, "DELETE", path, None, lambda _: f"{replica_id} gets requests again")


@fleet.command()
@click.argument("kind", type=click.Choice(["replica", "node"]))
@click.argument("name")
@click.option("--reason", required=True, help="Why, for the next operator.")
@click.option("--force", is_flag=True, help="Also the last ones that serve a base model or a rank class.")
@json_option
@click.pass_obj
def cordon(access: Access, kind: str, name: str, *, reason: str, force: bool) -> None:
    """Keep requests from a replica or from all replicas of a node, also after restarts, until `uncordon`."""
    body = {"reason": reason, "force": force}
    send(access, "PUT", f"{_CORDONS}/{kind}/{quote(name, safe='')}", body, lambda _: f"{kind} {name} is cordoned")


@fleet.command()
@click.argument("kind", type=click.Choice(["replica", "node"]))
@click.argument("name")
@json_option
@click.pass_obj
def uncordon(access: Access, kind: str, name: str) -> None:
    """Let a replica or the replicas of a node get requests again."""
    path = f"{_CORDONS}/{kind}/{quote(name, safe='')}"
    send(access, "DELETE", path, None, lambda _: f"{kind} {name} is no longer cordoned")


@fleet.command(context_settings={"ignore_unknown_options": True})  # so that -1 is a number, and refused as one
@click.argument("replicas", type=click.IntRange(1, 16))
@json_option
def scale(replicas: int) -> None:
    """Run so many REPLICAS on this machine, until the next `up`: more start one after the other, the newest drain."""
    from tenora.stack import command

    command.scale(replicas)


@click.command()
@key_option
@url_option
@click.option("--once", is_flag=True, help="Print one look, over one second, and end.")
@json_option
def top(*, key: str | None, control_url: str | None, once: bool) -> None:
    """Show what all replicas do, live, until Ctrl-C: tokens per second, requests, adapters in slots, KV pages.

    For this machine's control plane, also the running and waiting requests of its gateways.
    """
    from tenora.fleet.top import run_top
    from tenora.settings import StackSettings
    from tenora.stack.status import gateway_metrics_ports

    def look(client: Tenora) -> None:
        run_top(client, None if control_url else gateway_metrics_ports(StackSettings()), once=once)

    with_admin((key, control_url), look)
