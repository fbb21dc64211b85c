"""`tenora top`: what all replicas and the gateways of this machine do, once a second.

Gateways publish no queues, so those of this machine are asked for their metrics, and those of others are not shown.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from core.visible_text import visible
from tenora.client import Tenora
from tenora.command_line import show, wants_json

_EVERY_S: Final = 1.0
_RESIDENCIES_MAX: Final = 32  # a call for each replica that is shown with its slots
_REPLICAS: Final = "/api/v1/admin/replicas"
_GAUGES: Final = ("tenora_gateway_running_requests", "tenora_gateway_waiting_requests")
_GATEWAY_TIMEOUT_S: Final = 2
_COLUMNS: Final = ("replica", "base model", "node", "state", "tokens/s", "running", "waiting", "slots", "pages")

Replicas = Mapping[str, dict[str, Any]]
"""The control plane's view of each replica, by its id."""


def run_top(client: Tenora, gateway_ports: Sequence[int] | None, *, once: bool) -> None:
    """Draw until Ctrl-C; with ``once``, print one look over a second. ``gateway_ports`` are those on which gateways of
    this machine may serve their metrics, None where they are on other machines.
    """
    before, at = _read(client), time.monotonic()
    if once or wants_json():
        time.sleep(_EVERY_S)
        now = _read(client)
        looks = rows(before, now, seconds=time.monotonic() - at)
        gateways = read_gateways(gateway_ports)
        show({"replicas": looks, "gateways": gateways}, lambda: Console().print(_drawn(looks, gateways)))
        return
    try:
        with Live(console=Console(), refresh_per_second=4, transient=True) as live:
            while True:
                time.sleep(_EVERY_S)
                now, read_at = _read(client), time.monotonic()
                live.update(_drawn(rows(before, now, seconds=read_at - at), read_gateways(gateway_ports)))
                before, at = now, read_at
    except KeyboardInterrupt:
        return


def rows(before: Replicas, now: Replicas, *, seconds: float) -> list[dict[str, Any]]:
    """What each replica does, in the order of base models and ids. ``tokens_per_s`` is None for one whose engine is not
    that of the first look.
    """
    found = []
    for replica in sorted(now.values(), key=lambda each: (each["base_model"], each["id"])):
        first = before.get(replica["id"])
        same = first is not None and first["boot_id"] == replica["boot_id"]
        tokens = replica["counted_tokens"] - first["counted_tokens"] if same and first else None
        found.append(replica | {"tokens_per_s": None if tokens is None else round(tokens / seconds, 1)})
    return found


def read_gateways(ports: Iterable[int] | None) -> list[dict[str, int]] | None:
    """The running and waiting requests of each gateway process, from the first port to the last that a gateway has:
    the workers of one gateway take ports one after the other.
    """
    found: list[dict[str, int]] = []
    for port in ports or ():
        try:
            page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=_GATEWAY_TIMEOUT_S).text
        except httpx.HTTPError:
            break
        values = dict(line.split() for line in page.splitlines() if line.partition(" ")[0] in _GAUGES)
        if len(values) < len(_GAUGES):
            break
        running, waiting = (int(float(values[name])) for name in _GAUGES)
        found.append({"gateway": len(found) + 1, "running_requests": running, "waiting_requests": waiting})
    return None if ports is None else found


def _read(client: Tenora) -> Replicas:
    found = {each["id"]: each for each in client.call("GET", _REPLICAS).json()["data"]}
    for replica in list(found.values())[:_RESIDENCIES_MAX]:
        answer = client.call("GET", f"{_REPLICAS}/{replica['id']}/residency", refuse=False)
        slots = answer.json()["slots"] if answer.is_success else []
        replica["slots_used"] = sum(name is not None for name in slots)
    return found


def _drawn(looks: Sequence[dict[str, Any]], gateways: list[dict[str, int]] | None) -> Group:
    lines = [
        f"gateway {each['gateway']}: {each['running_requests']} running, {each['waiting_requests']} waiting"
        for each in gateways or ()
    ]
    none = "no gateway answers" if gateways is not None else "gateways: on other machines; see their /metrics"
    return Group(_table(looks), *(lines or [none]))


def _table(looks: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _COLUMNS[:4] else "right")
    for each in looks:
        table.add_row(
            *(Text(visible(str(each[name]))) for name in ("id", "base_model", "node", "state")),
            "" if each["tokens_per_s"] is None else f"{each['tokens_per_s']:g}",
            str(each["running_requests"]), str(each["waiting_requests"]),
            f"{each.get('slots_used', '?')}/{each['slots']}",
            f"{each['pages_total'] - each['pages_free']}/{each['pages_total']}",
        )  # fmt: skip
    pages, tokens = sum(each["pages_total"] for each in looks), sum(each["tokens_per_s"] or 0 for each in looks)
    table.caption = f"{len(looks)} replicas, {tokens:g} tokens/s, {pages} pages"
    return table
