"""`tenora adapters`: list, show and delete a tenant's adapters."""

from typing import Any, Final
from urllib.parse import quote

from rich.console import Console

from tenora.command_line import show
from tenora.control_client import ControlPlaneClient

_COLUMNS: Final = ("name", "base_model", "newest_ready", "serves")


def list_adapters(client: ControlPlaneClient) -> None:
    """Print one line an adapter, newest first."""
    found = client.items("/api/v1/adapters")
    show({"data": found}, lambda: _print_list(found, Console()))


def _print_list(found: list[dict[str, Any]], console: Console) -> None:
    if not found:
        console.print("no adapters yet; upload one with: tenora upload FOLDER --adapter NAME")
        return
    rows = [_COLUMNS, *(tuple(_cell(adapter[name]) for name in _COLUMNS) for adapter in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # an id that a narrow terminal cuts off could not be copied
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def show_adapter(client: ControlPlaneClient, name: str) -> None:
    """Print an adapter with its aliases and revisions, and why each was rejected."""
    path = f"/api/v1/adapters/{quote(name, safe='')}"
    adapter = client.call("GET", path).json()
    adapter["aliases"] = client.call("GET", f"{path}/aliases").json()["data"]
    adapter["revisions"] = client.items(f"{path}/revisions")
    show(adapter, lambda: _print_adapter(adapter, Console()))


def _print_adapter(adapter: dict[str, Any], console: Console) -> None:
    for field in ("name", "id", "base_model", "newest_ready", "serves", "rank", "pinned", "created_at"):
        console.print(f"{field}: {_cell(adapter[field])}", markup=False, highlight=False, soft_wrap=True)
    for alias in adapter["aliases"]:
        target = alias["revision"] or ", ".join(f"{each} {weight} %" for each, weight in alias["weights"].items())
        console.print(f"alias {alias['name']}: {target}", markup=False, highlight=False, soft_wrap=True)
    for revision in adapter["revisions"]:
        stage = f" ({revision['stage']})" if revision["stage"] else ""
        text = f"revision {revision['id']}: {revision['status']}{stage}, {revision['created_at']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        for problem in (revision["report"] or {}).get("problems", ()):
            text = f"  {problem['message']} ({problem['code']})"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def delete_adapter(client: ControlPlaneClient, name: str) -> None:
    """Delete an adapter with all its revisions."""
    client.call("DELETE", f"/api/v1/adapters/{quote(name, safe='')}")
    text = f"deleted {name}: calls of it are refused, and its files are removed"
    show({"deleted": name}, lambda: Console(stderr=True).print(text, markup=False, soft_wrap=True))


def _cell(value: Any) -> str:  # a JSON value
    return "-" if value is None else str(value)
