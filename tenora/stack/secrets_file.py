"""The secrets and the loopback ports of one machine, made once and kept under the home folder."""

import json
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from tenora.stack.program import accepts_connections, free_port

_PORTS: Final = (
    "postgres",
    "valkey",
    "s3",
    "engine",
    "web_metrics",
    "worker_metrics",
    "billing_metrics",
    "gateway_metrics",
    "replica_metrics",
)


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """Passwords and keys that the parts of one machine share."""

    postgres_password: str
    valkey_password: str
    s3_access_key: str
    s3_secret_key: str
    key_pepper: str
    salt_secret: str
    engine_key: str


def load_secrets(home: Path) -> Secrets:
    """Read ``home/secrets.json``, making it the first time. The whole home is closed to other users: tenants' weights
    and the databases lie in it too.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    file = home / "secrets.json"
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=Secrets)
    made = Secrets(**{field: secrets.token_hex(24) for field in Secrets.__struct_fields__})
    partial = home / "secrets.json.partial"
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.encode(made))
    partial.rename(file)
    return made


def choose_ports(run_folder: Path) -> dict[str, int]:
    """Ports for a fresh start: those of the last one where they are still free, others where they are not."""
    file = run_folder / "ports.json"
    try:
        last = json.loads(file.read_text())
    except (OSError, ValueError):
        last = {}
    ports = {
        name: int(last[name]) if name in last and not accepts_connections(last[name]) else free_port()
        for name in _PORTS
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports))
    return ports


def load_ports(run_folder: Path) -> dict[str, int]:
    """The ports chosen by the last start; raises FileNotFoundError when there was none."""
    ports: dict[str, int] = json.loads((run_folder / "ports.json").read_text())
    return ports
