"""What `tenora up`, `down`, `status`, `admin-key` and `logs` do and print."""

import contextlib
import json
import os
import time
from typing import Any

import click
from rich.console import Console

from core.visible_text import visible
from tenora.client import Tenora
from tenora.command_line import show, wants_json
from tenora.settings import StackSettings
from tenora.stack import daemon
from tenora.stack.log_files import read_logs
from tenora.stack.status import payments_line, read_status, replica_lines
from tenora.stack.up_down import programs_table, start_stack, stop_stack

console = Console(stderr=True)


def up(*, detach: bool, replicas: int | None) -> None:
    """Start everything; return with ``detach``, else run until Ctrl-C."""
    settings = StackSettings()
    if replicas is not None:
        settings = settings.model_copy(update={"replicas": replicas})
    start_stack(settings)
    status = read_status(settings)
    show(status, lambda: _print_addresses(console, settings, status))
    if not wants_json():
        _print_first_sign_in(status["control_url"])
    if detach:
        return
    console.print("running; Ctrl-C stops everything")
    try:
        while daemon.is_up(settings):
            time.sleep(0.5)
    except KeyboardInterrupt:
        stop_stack(settings)


def down() -> None:
    """Stop every process."""
    settings = StackSettings()
    runs = daemon.is_up(settings)
    if runs:
        stop_stack(settings)
    answer = {"stopped": runs, "home": str(settings.root)}
    show(answer, lambda: None if runs else console.print(_nothing_runs(settings), soft_wrap=True))


def status(*, secrets: bool) -> bool:
    """Print the state of every program. Returns whether everything is ready."""
    settings = StackSettings()
    now = read_status(settings, secrets=secrets)
    show(now, lambda: _print_status(settings, now))
    return bool(now["ready"])


def admin_key() -> None:
    """Print the admin key."""
    key = own_admin_key()
    show({"admin_key": key}, lambda: key)


def own_admin_key() -> str:
    """The admin key of the platform that runs under TENORA_HOME."""
    settings = StackSettings()
    key = read_status(settings, secrets=True).get("admin_key")
    if key is None:
        raise click.ClickException(_nothing_runs(settings))
    return str(key)


def scale(replicas: int) -> None:
    """Tell the running supervisor how many replicas to run."""
    settings, cores = StackSettings(), len(os.sched_getaffinity(0))
    if not daemon.is_up(settings):
        raise click.ClickException(_nothing_runs(settings))
    if replicas > max(cores, daemon.wanted_replicas(settings)):
        raise click.ClickException(
            f"{replicas} replicas do not fit: each needs a core of its own, and there are {cores}. Use at most {cores}."
        )
    daemon.scale(settings, replicas)
    text = f"replicas that will run: {replicas}; see them start or drain with: tenora status"
    show({"replicas": replicas}, lambda: text)


def logs(program: str | None, *, last: int, follow: bool) -> None:
    """Print the last lines of one program's log, or of all."""
    folder = StackSettings().root / "logs"
    known = sorted(path.stem for path in folder.glob("*.log"))
    if not known:
        raise click.ClickException(f"no logs under {folder}: the platform was never started there")
    if program is not None and program not in known:
        raise click.ClickException(f"no log named {program!r}; choose one of: {', '.join(known)}")
    width = max(map(len, known))
    with contextlib.suppress(KeyboardInterrupt):
        for name, line in read_logs(folder, program, last=last, follow=follow):
            if wants_json():
                print(json.dumps({"program": name, "line": line}), flush=follow)
            else:
                print(visible(line if program else f"{name:{width}} | {line}"), flush=follow)


def _nothing_runs(settings: StackSettings) -> str:
    return f"Nothing runs under {settings.root}. Start it with: tenora up --detach, or set TENORA_HOME."


def _print_status(settings: StackSettings, now: dict[str, Any]) -> None:
    if now["programs"]:
        out = Console()
        _print_addresses(out, settings, now)
        out.print(programs_table(now["programs"]))
        for line in replica_lines(now):
            out.print(visible(line), highlight=False, soft_wrap=True)
    else:
        console.print(_nothing_runs(settings), soft_wrap=True)


def _print_first_sign_in(control_url: str) -> None:
    """As long as no person runs the platform: a link that makes the first one. Each start makes a new link."""
    with Tenora(control_url, own_admin_key()) as client:
        if not client.call("GET", "/api/v1/admin/people").json()["data"]:
            made = client.call("POST", "/api/v1/admin/invitations", {"role": "admin"}).json()
            console.print("first sign-in, once and within 72 hours:", highlight=False)
            console.print(f"  {made['link']}", highlight=False, soft_wrap=True)


def _print_addresses(out: Console, settings: StackSettings, status: dict[str, Any]) -> None:
    """One line each, so that a terminal of 80 columns breaks no address. ``status`` is what ``read_status`` found."""
    lines = [
        f"home           {settings.root}",
        f"gateway        {status['gateway_url']}/v1",
        f"console        {status['control_url']}",
        f"control plane  {status['control_url']} (API reference: {status['control_url']}/schema/docs)",
        payments_line(status),
    ]
    for line in lines:
        if line is not None:
            out.print(line, highlight=False, soft_wrap=True)


def control_url() -> str:
    """The control plane that runs under TENORA_HOME, on whatever port it was started."""
    settings = StackSettings()
    url = read_status(settings).get("control_url")
    if url is None:
        raise click.ClickException(f"{_nothing_runs(settings)} For another machine, use --control-url.")
    return str(url)
