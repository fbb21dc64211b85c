"""The secrets and loopback ports of one machine, created once and stored under the home folder."""

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from core.snapshot_signing import SnapshotSigner
from tenora.stack.program import accepts_connections, free_port
from tenora.stack.supervisor import replace_text

PORT_USES: Final = ("engine", "metrics")
"""What a replica has a port for."""
PORTS: Final = (
    "postgres",
    "valkey",
    "s3",
    "s3_read",
    "web_metrics",
    "worker_metrics",
    "fleet_metrics",
    "batch_metrics",
    "billing_metrics",
    "gateway_metrics",
    "stripe_simulator",
)


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Passwords and keys of one machine. The first two are of the servers' owners; each kind of process has its own."""

    postgres_password: str
    valkey_password: str
    web_password: str
    worker_password: str
    billing_password: str
    gateway_password: str
    replica_password: str
    s3_access_key: str
    s3_secret_key: str
    s3_read_access_key: str
    s3_read_secret_key: str
    key_pepper: str
    notifications_key: str
    provider_secret: str
    snapshot_signing_key: str
    salt_secret: str
    engine_key: str
    stripe_webhook_secret: str  # between the Stripe simulator and the control plane


def load_secrets(home: Path) -> Secrets:
    """Read ``home/secrets.json``; the first call creates it. The home folder is closed to other users, because it also
    holds tenants' weights and the databases.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    file = home / "secrets.json"
    stored: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    secrets_of_home = {field: stored.get(field) or _new(field) for field in Secrets.__struct_fields__}
    if secrets_of_home != stored:  # a new home, or one of an earlier version
        partial = home / "secrets.json.partial"
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump(secrets_of_home, out)
        partial.rename(file)
    return Secrets(**secrets_of_home)


def _new(field: str) -> str:
    if field == "stripe_webhook_secret":
        return f"whsec_{secrets.token_hex(24)}"
    return SnapshotSigner.new().private_key if field == "snapshot_signing_key" else secrets.token_hex(24)


def choose_ports(run_folder: Path, replicas: Iterable[str] = (), **fixed: int) -> dict[str, int]:
    """Ports for a new start: those of the last start when they are free, else others, and the ``fixed`` ones that the
    operator chose or that programs use now. No two are the same. ``replicas`` are the programs that need some of their
    own.
    """
    try:
        last = load_ports(run_folder)
    except (OSError, ValueError):
        last = {}
    of_replicas = [f"{replica}_{use}" for replica in replicas for use in PORT_USES]
    ports = dict(fixed)
    for name in (*PORTS, *of_replicas):
        if name in fixed:
            continue
        port = last.get(name)
        if port is None or port in ports.values() or accepts_connections(port):
            port = free_port(ports.values())
        ports[name] = port
    run_folder.mkdir(parents=True, exist_ok=True)
    replace_text(run_folder / "ports.json", json.dumps(ports))
    return ports


def load_ports(run_folder: Path) -> dict[str, int]:
    """The ports of the last start. Raises FileNotFoundError when there was none."""
    ports: dict[str, int] = json.loads((run_folder / "ports.json").read_text())
    return ports
