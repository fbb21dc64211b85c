"""Renders docs/reference/settings.md: what an operator must set first, then every setting by the process that reads it.

Names, defaults and descriptions come from the settings classes; only the production list is written here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from adapters.settings import StoreSettings
from billing.worker import WORKER_PARTS
from control_plane.batches.settings import BatchWorkerSettings
from control_plane.pools.settings import FleetSettings
from control_plane.settings import CONTROL_PARTS, BatchSettings
from core.settings import (
    Fragment,
    KeySettings,
    PostgresSettings,
    RedisSettings,
    S3Settings,
    TelemetrySettings,
)
from data_plane.engine.settings import REPLICA_PARTS
from data_plane.gateway.settings import GatewaySettings
from tenora.ray_placer.settings import RayPlacerSettings
from tenora.settings import StackSettings


@dataclass(frozen=True)
class Process:
    """A process, how it starts, and the settings classes that it reads."""

    title: str
    command: str
    settings: tuple[type[Fragment], ...]


PROCESSES: Final = (
    Process("Gateway", "python -m data_plane gateway", (GatewaySettings,)),
    Process("Control plane", "python -m control_plane web` and `python -m control_plane worker", CONTROL_PARTS),
    Process(
        "Fleet", "python -m control_plane fleet", (FleetSettings, PostgresSettings, RedisSettings, TelemetrySettings)
    ),
    Process(
        "Batch",
        "python -m control_plane batch",
        (
            BatchWorkerSettings,
            BatchSettings,
            KeySettings,
            S3Settings,
            StoreSettings,
            PostgresSettings,
            TelemetrySettings,
        ),
    ),
    Process("Billing worker", "python -m billing worker", WORKER_PARTS),
    Process("Replica", "python -m data_plane replica", REPLICA_PARTS),
    Process("Ray placer", "tenora ray-placer", (RayPlacerSettings,)),
    Process("One machine", "tenora up", (StackSettings,)),
)

MUST_SET: Final = {
    "redis_url": "The address of your Redis or Valkey. Turn its append-only file on.",
    "postgres_dsn": "The address of your Postgres.",
    "s3_endpoint": "The address of your object store; leave it empty for AWS S3.",
    "s3_bucket": "The bucket for uploads and adapters; `python -m control_plane bucket` creates it.",
    "s3_access_key": "Credentials of the bucket, unless the machine has a role.",
    "s3_secret_key": "The same.",
    "snapshot_signing_key": "The private key of `python -m control_plane signing-key`, for the control plane's worker.",
    "snapshot_public_keys": "The public key of the same pair, for gateways and replicas.",
    "gateway_url": "The address of the gateways, for the batch process and the console's playground.",
    "control_url": "The address of the control plane, for gateways that serve files and batches.",
    "key_pepper": "One secret (16+ characters) for control plane and gateways. Losing it invalidates every API key.",
    "notifications_key": "One secret (16+ characters) for control plane and billing worker, if tenants get alerts.",
    "provider_secret": "One secret (16+ characters) for control plane and gateways, if outside providers serve models.",
    "notifications_email_from": "The sender of alerts by e-mail, with the mail server in `TENORA_SMTP_…`.",
    "salt_secret": "One secret of 16 characters or more for every gateway. It keeps the tenants' prefix caches apart.",
    "engine_key": "One secret of 16 characters or more for every gateway and replica.",
    "journal_dir": "A folder that survives a gateway restart. It holds settlements that Redis has not confirmed.",
    "engine_host": "The replica's private address, not 0.0.0.0: the engine listens on it, and gateways connect to it.",
    "gateway_host": "The address on which gateways listen, such as 0.0.0.0 behind a load balancer.",
    "control_host": "The address on which the control plane listens.",
    "s3_region": "The bucket's region, on AWS.",
    "base_model": "The id of the base model that the replica serves, as registered with the control plane.",
    "model_path": "The folder of that base model's checkpoint.",
    "cache_dir": "A folder for adapters on the replica's local disk.",
    "engine_run_dir": "A folder for the replica's sockets and locks, closed to other users.",
}
"""What production must set, with the reason; every setting without a default is one of them."""


def render_settings() -> str:
    """The page as Markdown."""
    readers = _readers()
    page = [
        "# Settings\n",
        (
            "Every process reads its settings from environment variables once, when it starts. `tenora up` sets\n"
            "everything in the first table for its own embedded servers. The last part of a name is its unit: `_s`\n"
            "seconds, `_ms` milliseconds, `_bytes`; `_max` marks an upper limit.\n"
        ),
        "## You must set these in production\n",
        _table(
            ("variable", "read by", "what to set"),
            [(_variable(name), _titles(readers[name][1]), reason) for name, reason in MUST_SET.items()],
        ),
    ]
    shared = {name: read for name, read in readers.items() if len(read[1]) > 1}
    page += [
        "## Shared by several processes\n",
        _table(
            ("variable", "default", "meaning", "read by"),
            [(*_row(name, info), _titles(processes)) for name, (info, processes) in sorted(shared.items())],
        ),
    ]
    for process in PROCESSES:
        own = [_row(name, info) for name, (info, processes) in sorted(readers.items()) if processes == [process]]
        page += [f"## {process.title}\n", f"`{process.command}`\n", _table(("variable", "default", "meaning"), own)]
    return "\n".join(page)


def _readers() -> dict[str, tuple[FieldInfo, list[Process]]]:
    """Each setting by its field's name, with the processes that read it."""
    found: dict[str, tuple[FieldInfo, list[Process]]] = {}
    for process in PROCESSES:
        for name, info in _fields(process):
            processes = found.setdefault(name, (info, []))[1]
            if process not in processes:
                processes.append(process)
    return found


def _fields(process: Process) -> Iterator[tuple[str, FieldInfo]]:
    for settings in process.settings:
        yield from settings.model_fields.items()


def _row(name: str, info: FieldInfo) -> tuple[str, str, str]:
    if info.default_factory is not None:
        default = "the host's name" if "consumer" in name else "computed"
    elif info.default is PydanticUndefined:
        default = "required"
    else:
        value = info.default.get_secret_value() if isinstance(info.default, SecretStr) else info.default
        default = "empty" if value in (None, "", ()) else f"`{value}`"
    return _variable(name), default, info.description or ""


def _variable(name: str) -> str:
    return f"`TENORA_{name.upper()}`"


def _titles(processes: Sequence[Process]) -> str:
    return ", ".join(process.title for process in processes)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"

    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, rows))
