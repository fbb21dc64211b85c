"""`tenora pools`: named sets of replicas, and the revisions that say what they run.

As in ``tenora.cli``, a command imports what it needs when it runs.
"""

from typing import Any, Final
from urllib.parse import quote

import click

from tenora.client import Tenora
from tenora.command_line import json_option, show
from tenora.control_access import Access, key_option, send, url_option, with_admin

_POOLS: Final = "/api/v1/admin/pools"


@click.group()
@key_option
@url_option
@click.pass_context
def pools(context: click.Context, *, key: str | None, control_url: str | None) -> None:
    """Make pools of replicas, and say what their replicas run."""
    context.obj = (key, control_url)


@pools.command("list")
@json_option
@click.pass_obj
def list_pools(access: Access) -> None:
    """List all pools with their replicas by revision and state."""

    def read(client: Tenora) -> None:
        found = client.call("GET", _POOLS).json()
        show(found, lambda: "\n".join(map(_line, found["data"])) or "no pools")

    with_admin(access, read)


@pools.command()
@click.argument("pool")
@click.option("--base-model", required=True, help="Id of the base model.")
@click.option("--rank-max", type=int, default=16, show_default=True, help="Largest LoRA rank that it serves.")
@click.option("--hardware", default="", help="Machines that it runs on, for people.")
@click.option("--replicas", default="1-1", show_default=True, metavar="MIN-MAX", help="How many replicas it may have.")
@json_option
@click.pass_obj
def create(access: Access, pool: str, *, base_model: str, rank_max: int, hardware: str, replicas: str) -> None:
    """Create a pool. It has no replicas before its first revision is in force."""
    body = {"name": pool, "base_model": base_model, "rank_max": rank_max, "hardware": hardware, **_bounds(replicas)}
    send(access, "POST", _POOLS, body, _line)


@pools.command()
@click.argument("pool")
@click.option("--hardware", help="Machines that it runs on, for people.")
@click.option("--replicas", metavar="MIN-MAX", help="How many replicas it may have; 0-3 lets an idle pool end all.")
@click.option("--ttft-ms", type=click.IntRange(0), help="Target of the time to first token; 0 removes it.")
@click.option("--itl-ms", type=click.IntRange(0), help="Target of the time between tokens; 0 removes it.")
@json_option
@click.pass_obj
def change(
    access: Access, pool: str, *, hardware: str | None, replicas: str | None, ttft_ms: int | None, itl_ms: int | None
) -> None:
    """Change a pool's hardware label, how many replicas it may have, or its latency targets."""
    body: dict[str, Any] = {} if replicas is None else dict(_bounds(replicas))
    if hardware is not None:
        body["hardware"] = hardware
    for name, value in (("ttft_target_ms", ttft_ms), ("itl_target_ms", itl_ms)):
        if value is not None:
            body[name] = value or None
    if not body:
        raise click.UsageError("give what to change: --hardware, --replicas, --ttft-ms or --itl-ms")
    send(access, "PATCH", _path(pool), body, _line)


@pools.command()
@click.argument("pool")
@click.option("--class", "classes", multiple=True, help="A class of service: near_real_time, interactive or batch.")
@click.option("--tenant", "tenants", multiple=True, help="Id of a tenant whose dedicated capacity the pool is.")
@click.option("--tokens-min", type=click.IntRange(1), help="Fewest tokens of prompt and answer of a request.")
@click.option("--tokens-max", type=click.IntRange(1), help="Most tokens of prompt and answer of a request.")
@json_option
@click.pass_obj
def serve(
    access: Access,
    pool: str,
    *,
    classes: tuple[str, ...],
    tenants: tuple[str, ...],
    tokens_min: int | None,
    tokens_max: int | None,
) -> None:
    """Say whom a pool serves: what is not given is not restricted, so without options it serves all."""
    body = {
        "service_classes": classes or None,
        "tenants": tenants or None,
        "tokens_min": tokens_min,
        "tokens_max": tokens_max,
    }
    send(access, "PATCH", _path(pool), body, _line)


@pools.command()
@click.argument("pool")
@click.option("--weights", help="Digest that `tenora base-models push` printed.")
@click.option("--engine", help='Engine with its version and device, such as "vllm 0.32.0 gpu".')
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, such as engine_slots=16.")
@json_option
@click.pass_obj
def revise(access: Access, pool: str, *, weights: str | None, engine: str | None, settings: tuple[str, ...]) -> None:
    """Add a revision: the newest one with these changes. `use` puts it in force."""
    body: dict[str, Any] = {name: value for name, value in (("weights", weights), ("engine", engine)) if value}
    body["settings"] = dict(map(_setting, settings))
    send(access, "POST", f"{_path(pool)}/revisions", body, _revision_line)


@pools.command()
@click.argument("pool")
@json_option
@click.pass_obj
def revisions(access: Access, pool: str) -> None:
    """List a pool's revisions, the newest first."""

    def read(client: Tenora) -> None:
        found = client.items(f"{_path(pool)}/revisions")
        show({"data": found}, lambda: "\n".join(map(_revision_line, found)) or "no revisions")

    with_admin(access, read)


@pools.command()
@click.argument("pool")
@click.argument("revision", type=int)
@json_option
@click.pass_obj
def use(access: Access, pool: str, revision: int) -> None:
    """Put a REVISION in force, also an older one: the pool's replicas are replaced one by one."""
    send(access, "PUT", f"{_path(pool)}/revision", {"revision": revision}, _line)


@pools.command()
@click.argument("pool")
@click.option("--revision", type=int, help="By default the one in force.")
@json_option
@click.pass_obj
def env(access: Access, pool: str, *, revision: int | None) -> None:
    """Print the variables of a replica of the pool, beside the secrets and addresses of its machine."""

    def read(client: Tenora) -> None:
        number = revision or client.call("GET", _path(pool)).json()["revision"]
        found = next((each for each in client.items(f"{_path(pool)}/revisions") if each["number"] == number), None)
        if found is None:
            raise click.ClickException(f"the pool {pool} has no revision {number}; see `tenora pools revisions {pool}`")
        variables = found["environment"]
        show(variables, lambda: "\n".join(f"{name}={value}" for name, value in variables.items()))

    with_admin(access, read)


def _path(pool: str) -> str:
    return f"{_POOLS}/{quote(pool, safe='')}"


def _bounds(given: str) -> dict[str, int]:
    least, _, most = given.partition("-")
    if not (least.isdecimal() and most.isdecimal()):
        raise click.BadParameter("write two numbers, such as 1-3", param_hint="--replicas")
    return {"replicas_min": int(least), "replicas_max": int(most)}


def _setting(given: str) -> tuple[str, int | str]:
    name, separator, value = given.partition("=")
    if not separator:
        raise click.BadParameter("write a name and a value, such as engine_slots=16", param_hint="--set")
    return name, int(value) if value.isdecimal() else value


def _line(pool: dict[str, Any]) -> str:
    replicas = ", ".join(f"{each['count']} {each['state']} on {each['revision']}" for each in pool["replicas"])
    return (
        f"{pool['name']}  {pool['base_model']}  rank {pool['rank_max']}  "
        f"{pool['replicas_min']}-{pool['replicas_max']} replicas  revision {pool['revision']}  "
        f"{pool['replicas_wanted']} wanted  {replicas or 'no live replicas'}"
    )


def _revision_line(revision: dict[str, Any]) -> str:
    settings = " ".join(f"{name}={value}" for name, value in revision["settings"].items())
    return f"{revision['number']}  {revision['digest']}  {revision['engine']}  {settings}"
