"""`tenora adapters`: list, show and delete a tenant's adapters."""

from typing import Any, Final

from rich.console import Console

from tenora.control_client import ControlPlaneClient

_COLUMNS: Final = ("name", "base_model", "newest_ready", "serves")


def list_adapters(client: ControlPlaneClient, console: Console) -> None:
    """Print one line an adapter, newest first."""
    found = client.pages("/api/v1/adapters")
    if not found:
        console.print("no adapters yet; upload one with: tenora upload FOLDER --adapter NAME")
        return
    rows = [_COLUMNS, *(tuple(_cell(adapter[name]) for name in _COLUMNS) for adapter in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # an id that a narrow terminal cuts off could not be copied
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def show_adapter(client: ControlPlaneClient, name: str, console: Console) -> None:
    """Print an adapter with its aliases and revisions."""
    adapter = client.call("GET", f"/api/v1/adapters/{name}").json()
    for field in ("name", "id", "base_model", "newest_ready", "serves", "rank", "pinned", "created_at"):
        console.print(f"{field}: {_cell(adapter[field])}", markup=False, highlight=False, soft_wrap=True)
    aliases = client.call("GET", f"/api/v1/adapters/{name}/aliases").json()["data"]
    for alias in aliases:
        target = alias["revision"] or ", ".join(f"{each} {weight} %" for each, weight in alias["weights"].items())
        console.print(f"alias {alias['name']}: {target}", markup=False, highlight=False, soft_wrap=True)
    for revision in client.pages(f"/api/v1/adapters/{name}/revisions"):
        stage = f" ({revision['stage']})" if revision["stage"] else ""
        text = f"revision {revision['id']}: {revision['status']}{stage}, {revision['created_at']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def delete_adapter(client: ControlPlaneClient, name: str, console: Console) -> None:
    """Delete an adapter with all its revisions."""
    client.call("DELETE", f"/api/v1/adapters/{name}")
    console.print(f"deleted {name}: calls of it are refused, and its files are removed", markup=False, soft_wrap=True)


def _cell(value: Any) -> str:  # a JSON value
    return "-" if value is None else str(value)
