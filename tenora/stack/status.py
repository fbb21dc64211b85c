"""What `tenora status` reports: addresses, programs and replicas, and whether every part is ready."""

import json
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from tenora.settings import StackSettings
from tenora.stack.daemon import is_supervised, is_up, run_folder
from tenora.stack.definition import STRIPE_SIMULATOR, Stack
from tenora.stack.secrets_file import load_ports, load_secrets


def running_stack(settings: StackSettings) -> Stack:
    """The stack as it was last started, with the ports of then. Raises FileNotFoundError when it never was."""
    ports = load_ports(run_folder(settings))
    public = {f"{name}_port": ports[name] for name in ("gateway", "control") if name in ports}
    return Stack(settings.model_copy(update=public), load_secrets(settings.root), ports)


def gateway_metrics_ports(settings: StackSettings) -> range:
    """The ports on which the workers of the running gateway may serve their metrics, the first worker's first."""
    first = load_ports(run_folder(settings))["gateway_metrics"]
    return range(first, first + 64)  # no gateway has more workers


def read_status(settings: StackSettings, *, secrets: bool = False) -> dict[str, Any]:
    """The status as one JSON-able dict. ``ready`` is True only when a supervisor lives, every program is up and a
    replica has generated. Only with ``secrets`` has it the admin key and the passwords in the addresses of Postgres and
    Redis.
    """
    nothing: dict[str, Any] = {"ready": False, "programs": {}, "replicas": [], "home": str(settings.root)}
    if not is_up(settings):
        return nothing
    try:
        programs = json.loads((run_folder(settings) / "state.json").read_text())["programs"]
        stack = running_stack(settings)
    except (OSError, ValueError, KeyError):
        return nothing
    replicas = [
        {field: replica.get(field, "") for field in ("id", "url", "base_model", "state", "reason")}
        for replica in stack.replicas()
    ]
    addresses = asdict(stack.addresses)
    if STRIPE_SIMULATOR not in programs:
        del addresses["stripe_simulator_url"]
    if not secrets:
        addresses = {name: _without_credentials(url) for name, url in addresses.items()}
    key_file = stack.admin_key_file
    admin_key = {"admin_key": key_file.read_text().strip()} if secrets and key_file.exists() else {}
    return {
        "ready": is_supervised(settings)
        and all(program["state"] in ("ready", "done") for program in programs.values())
        and any(replica["state"] == "ready" for replica in replicas),
        **addresses,
        **admin_key,
        "replicas": replicas,
        "programs": programs,
        "home": str(settings.root),
    }


def payments_line(status: dict[str, Any]) -> str | None:
    """The line that says that payments are simulated; None where they are not."""
    url = status.get("stripe_simulator_url")
    return None if url is None else f"payments go to the Stripe simulator at {url}: no real money"


def replica_lines(status: dict[str, Any]) -> list[str]:
    """A line for each replica that says what is wrong with it."""
    wrong = [each for each in status["replicas"] if each["reason"]]
    return [f"replica {each['id']} is {each['state']}: {each['reason']}" for each in wrong]


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
