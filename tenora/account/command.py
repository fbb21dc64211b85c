"""Commands that show a tenant its account: API keys, usage, quota, requests and invoices."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from core.api_keys import ALL_SCOPES
from core.visible_text import visible
from tenora.client import Tenora
from tenora.command_line import dollars, json_option, show, table, wants_json
from tenora.control_access import Access, tenant_access, with_client

_FOLLOW_S: Final = 2.0
_SEEN_MAX: Final = 10_000
_GROUPS: Final = ("adapter", "base_model", "key", "revision", "service_class")
_OUTCOMES: Final = ("done", "client_gone", "replica_gone", "timeout", "gateway_gone", "refused", "replayed")


@click.group()
def keys() -> None:
    """List, create, rotate and revoke API keys."""


@keys.command("list")
@tenant_access
@json_option
def list_keys(access: Access) -> None:
    """List all keys, newest first, revoked ones too."""
    found = with_client(access, Tenora.keys)
    rows = [
        (each["id"], each["redacted"], each["name"], ",".join(each["scopes"]), each["created_at"], each["revoked_at"])
        for each in found
    ]
    show({"data": found}, lambda: table(("id", "key", "name", "scopes", "created", "revoked"), rows))


@keys.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(ALL_SCOPES), help="One of its scopes; repeatable.")
@click.option("--model", "models", multiple=True, help="A model that it may call, by name; repeatable [default: all].")
@click.option("--expires-in-days", type=click.IntRange(1, 3650), help="When it ends by itself [default: never].")
@tenant_access
@json_option
def create_key(
    access: Access, name: str, *, scopes: tuple[str, ...], models: tuple[str, ...], expires_in_days: int | None
) -> None:
    """Create a key named NAME and print it, this once. Without --scope it can do what your key can."""
    made = with_client(
        access, lambda client: client.create_key(name, scopes, models=models, expires_in_days=expires_in_days)
    )
    show(made, lambda: made["key"])


@keys.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap",
    type=click.Choice(["none", "1h", "24h", "7d"]),
    default="24h",
    show_default=True,
    help="How long the secret before it stays valid.",
)
@tenant_access
@json_option
def rotate_key(access: Access, key_id: str, *, overlap: str) -> None:
    """Give a key a new secret and print it, this once. Its id, limits and usage stay."""
    made = with_client(access, lambda client: client.rotate_key(key_id, overlap=overlap))
    show(made, lambda: made["key"])


@keys.command("revoke")
@click.argument("key_id")
@tenant_access
@json_option
def revoke_key(access: Access, key_id: str) -> None:
    """Revoke a key by its id. This cannot be undone."""
    with_client(access, lambda client: client.revoke_key(key_id))
    show({"revoked": key_id}, lambda: f"revoked {key_id}: gateways refuse it")


@click.command()
@click.option("--start", help="Start, RFC 3339 [default: a day before the end].")
@click.option("--end", help="End, RFC 3339 [default: now].")
@click.option("--bucket", type=click.Choice(["1m", "1h", "1d"]), default="1h", show_default=True, help="Each row's.")
@click.option("--group-by", type=click.Choice(_GROUPS), help="Split each bucket by this.")
@click.option("--time-zone", help="Zone of days, such as Europe/Berlin [default: UTC].")
@tenant_access
@json_option
def usage(access: Access, **options: str | None) -> None:
    """Show requests, tokens and cost in buckets of time."""
    asked = {name: value for name, value in options.items() if value is not None}
    found = with_client(access, lambda client: client.usage(**asked))
    group = {"key": "key_id"}.get(asked.get("group_by", ""), asked.get("group_by"))
    counts = ("requests", "input_tokens", "cached_tokens", "output_tokens")
    heads = ("start", *([group] if group else []), *counts, "cost")
    rows = [
        [each["start"], *([each.get(group)] if group else []), *(each[name] for name in counts),
         dollars(each["amount_nanos"])]
        for each in found["data"]
    ]  # fmt: skip
    show(found, lambda: table(heads, rows) if rows else f"no usage from {found['start']} to {found['end']}")


@click.command()
@tenant_access
@json_option
def quota(access: Access) -> None:
    """Show each limit, what is used of it, and what running requests hold."""
    found = with_client(access, Tenora.quota)
    counted = {**found["held"], **found["used"]}
    rows = [(name, counted[name], limit) for name, limit in found["limits"].items() if name in counted]
    show(found, lambda: table(("limit", "used", "of"), rows))


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with new requests until Ctrl-C.")
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many at first.")
@click.option("--model", help="Only requests that asked for exactly this model.")
@click.option("--outcome", type=click.Choice(_OUTCOMES), help="Only requests that ended so.")
@click.option("--code", help="Only requests that got this error.")
@tenant_access
@json_option
def requests(access: Access, *, follow: bool, limit: int, **filters: str | None) -> None:
    """Show the newest requests and refusals, the newest last. With --follow, --json prints one document a line."""
    asked = {name: value for name, value in filters.items() if value is not None}

    def read(client: Tenora) -> None:
        newest = next(client.requests(asked, items=limit))["data"]
        if not follow:
            show({"data": newest}, lambda: "\n".join(map(_request_line, reversed(newest))) or "no requests")
            return
        for each in _followed(client, newest, asked):
            click.echo(json.dumps(each) if wants_json() else visible(_request_line(each)))

    with suppress(KeyboardInterrupt):
        with_client(access, read)


def _followed(client: Tenora, newest: list[dict[str, Any]], asked: dict[str, str]) -> Iterator[dict[str, Any]]:
    """These requests, and from then on each one that the log gets, the newest last."""
    yield from reversed(newest)
    seen = dict.fromkeys(each["request_id"] for each in newest)
    while True:
        time.sleep(_FOLLOW_S)
        fresh: list[dict[str, Any]] = []
        for page in client.requests(asked):
            new = [each for each in page["data"] if each["request_id"] not in seen]
            fresh += new
            if len(new) < len(page["data"]) or not seen:
                break
        yield from reversed(fresh)
        seen = dict.fromkeys([*(each["request_id"] for each in fresh), *seen][:_SEEN_MAX])


def _request_line(row: dict[str, Any]) -> str:
    tokens = f"{row['prompt_tokens'] or 0}+{row['completion_tokens'] or 0} tokens"
    took = "" if row["whole_ms"] is None else f", {row['whole_ms']} ms"
    first = "" if row["ttft_ms"] is None else f" (first token {row['ttft_ms']} ms)"
    cost = "" if row["price_nanos"] is None else f", {dollars(row['price_nanos'])}"
    why = " ".join(str(row[name]) for name in ("code", "limit") if row[name])
    what = f"{row['time']}  {row['request_id']}  {row['model'] or '-'}  {row['outcome']} {why}".rstrip()
    return f"{what}  {tokens}{took}{first}{cost}"


@click.group()
def invoices() -> None:
    """List and show invoices, and store them as PDF."""


@invoices.command("list")
@tenant_access
@json_option
def list_invoices(access: Access) -> None:
    """List all invoices, newest first."""
    found = with_client(access, Tenora.invoices)
    rows = [
        (each["id"], each["number"], each["status"], each["period_start"], each["period_end"],
         _cents(each["total_cents"]), _cents(each["amount_due_cents"]), each["due_on"])
        for each in found
    ]  # fmt: skip
    heads = ("id", "number", "status", "from", "until", "total", "due", "due on")
    show({"data": found}, lambda: table(heads, rows) if rows else "no invoices yet")


@invoices.command("show")
@click.argument("invoice_id")
@tenant_access
@json_option
def show_invoice(access: Access, invoice_id: str) -> None:
    """Show one invoice with its lines."""
    found = with_client(access, lambda client: client.invoice(invoice_id))
    heads = ("line", "model", "adapter", "quantity", "unit", "amount")
    rows = [
        (each["kind"], each["base_model"], each["adapter_name"], each["quantity"], each["unit"],
         _cents(each["amount_cents"]))
        for each in found["lines"]
    ]  # fmt: skip
    names = ("number", "status", "period_start", "period_end", "due_on")
    facts = [f"{name}: {found[name]}" for name in names]
    facts += [f"{name}: {_cents(found[f'{name}_cents'])}" for name in ("net", "tax", "total", "paid", "amount_due")]
    show(found, lambda: "\n".join([*facts, table(heads, rows)]))


@invoices.command("pdf")
@click.argument("invoice_id")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The file [default: INVOICE_ID.pdf].")
@tenant_access
@json_option
def store_pdf(access: Access, invoice_id: str, *, out: Path | None) -> None:
    """Store an invoice as PDF."""
    content = with_client(access, lambda client: client.invoice_pdf(invoice_id))
    file = out or Path(f"{Path(invoice_id).name}.pdf")
    file.write_bytes(content)
    show({"file": str(file), "size_bytes": len(content)}, lambda: str(file))


def _cents(cents: int) -> str:
    return f"${cents / 100:.2f}"
