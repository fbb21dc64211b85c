"""``python -m control_plane``: starts the web application or the worker, and runs an operator's one-time commands."""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core import redis_acl, telemetry
from core.errors import AppError
from core.quick_imports import quick_imports
from core.settings import (
    KeySettings,
    PostgresSettings,
    RedisSettings,
    TelemetrySettings,
    check_settings,
    exit_on_invalid_settings,
)

_Run = Callable[[argparse.Namespace], int]


def _web(_: argparse.Namespace) -> int:
    with quick_imports():
        from control_plane.app import serve
        from control_plane.settings import ControlSettings

    serve(ControlSettings())
    return 0


def _worker(_: argparse.Namespace) -> int:
    with quick_imports():
        from control_plane import worker
        from control_plane.settings import ControlSettings

    return worker.run(ControlSettings())


def _fleet(_: argparse.Namespace) -> int:
    with quick_imports():
        from control_plane import fleet_process
        from control_plane.pools.settings import FleetSettings

    return fleet_process.run(PostgresSettings(), RedisSettings(), FleetSettings())


def _batch(_: argparse.Namespace) -> int:
    with quick_imports():
        from control_plane import batch_process

    return batch_process.run()


def _migrate(_: argparse.Namespace) -> int:
    from control_plane import operations

    missing = operations.migrate(PostgresSettings())
    print("migrated to the newest version")  # noqa: T201 - a command answers on its standard output
    if missing:
        print(f"not granted, because they do not exist: {', '.join(missing)}; see SECURITY.md", file=sys.stderr)  # noqa: T201
    return 0


def _bucket(_: argparse.Namespace) -> int:
    from control_plane import operations
    from control_plane.settings import ControlSettings

    print(operations.prepare_bucket(ControlSettings()))  # noqa: T201
    return 0


def _publish(_: argparse.Namespace) -> int:
    from control_plane import operations
    from control_plane.settings import ControlSettings

    position = operations.publish(ControlSettings())
    print(f"published epoch {position.epoch}")  # noqa: T201
    return 0


def _signing_key(_: argparse.Namespace) -> int:
    from core.snapshot_signing import SnapshotSigner

    signer = SnapshotSigner.new()
    print(f"TENORA_SNAPSHOT_SIGNING_KEY={signer.private_key}")  # noqa: T201
    print(f"TENORA_SNAPSHOT_PUBLIC_KEYS={signer.public_key}")  # noqa: T201
    return 0


def _redis_acl(_: argparse.Namespace) -> int:
    for user in redis_acl.USERS:
        print(f"user {user} on #SHA-256-OF-ITS-PASSWORD {redis_acl.user_rules(user)}")  # noqa: T201
    return 0


def _bootstrap(arguments: argparse.Namespace) -> int:
    from control_plane import operations

    keys = KeySettings()
    print(operations.bootstrap(PostgresSettings(), keys, arguments.admin_key_file))  # noqa: T201
    return 0


def _create_admin_key(arguments: argparse.Namespace) -> int:
    from control_plane import operations

    operations.create_admin_key(PostgresSettings(), KeySettings(), arguments.key_name, arguments.key_file)
    print(f"the new admin key is in {arguments.key_file}")  # noqa: T201
    return 0


def _list_admin_keys(_: argparse.Namespace) -> int:
    from control_plane import operations

    for key in operations.list_admin_keys(PostgresSettings()):
        state = "live" if key.revoked_at is None else f"revoked {key.revoked_at:%Y-%m-%d %H:%M} UTC"
        print(f"{key.id}  {key.redacted}  created {key.created_at:%Y-%m-%d %H:%M} UTC  {state}  {key.name}")  # noqa: T201
    return 0


def _revoke_admin_key(arguments: argparse.Namespace) -> int:
    from control_plane import operations

    operations.revoke_admin_key(PostgresSettings(), arguments.key_id)
    print(f"revoked {arguments.key_id}: its next request is refused")  # noqa: T201
    return 0


def _list_base_models(_: argparse.Namespace) -> int:
    from control_plane import operations

    for each in operations.list_base_models(PostgresSettings()):
        print(f"{each.id}  {', '.join((each.hub_name, *each.names))}")  # noqa: T201
    return 0


def _name_base_model(arguments: argparse.Namespace) -> int:
    from control_plane import operations

    found = operations.set_base_model_names(PostgresSettings(), arguments.base_model, arguments.names)
    print(f"{found.id} is known as {', '.join((found.id, found.hub_name, *found.names))}")  # noqa: T201
    return 0


def _archive_audit(arguments: argparse.Namespace) -> int:
    from control_plane import operations

    count = operations.archive_audit(PostgresSettings(), arguments.before, arguments.to)
    print(f"moved {count} rows of the audit trail to {arguments.to}")  # noqa: T201
    return 0


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)


def _add(commands: Any, name: str, run: _Run | None, text: str) -> argparse.ArgumentParser:
    """``commands`` is what ``add_subparsers`` returns; argparse has no public name for its type."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run, name=name)
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m control_plane",
        description="Starts Tenora's control plane or its worker, or runs an operator's one-time command.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "web", _web, "Serve the REST API on TENORA_CONTROL_HOST and TENORA_CONTROL_PORT.")
    _add(commands, "worker", _worker, "Publish changes to gateways, validate uploads and clean up, until SIGTERM.")
    _add(
        commands,
        "fleet",
        _fleet,
        "Decide how many replicas of which pool revision placers keep running, until SIGTERM.",
    )
    _add(commands, "batch", _batch, "Check batches and send their lines through the gateways, until SIGTERM.")
    _add(commands, "migrate", _migrate, "Migrate the database and grant its roles, as its owner.")
    _add(commands, "bucket", _bucket, "Create the bucket and set its CORS rules for TENORA_CONTROL_CORS_ORIGINS.")
    _add(commands, "signing-key", _signing_key, "Print a new pair of keys that sign and verify published snapshots.")
    _add(commands, "redis-acl", _redis_acl, "Print the users of Redis with their rights, as lines of an ACL file.")
    publish = "Rebuild the snapshot that gateways follow from Postgres and replace it in one step."
    _add(commands, "publish", _publish, publish)
    bootstrap = _add(commands, "bootstrap", _bootstrap, "Create the first admin key. Running it again changes nothing.")
    bootstrap.add_argument(
        "--admin-key-file",
        type=Path,
        required=True,
        help="File of the admin key. It is created with mode 0600 if it is missing.",
    )
    _add_admin_keys(_add(commands, "admin-keys", None, "List, create and revoke admin keys."))
    archive = _add(commands, "archive-audit", _archive_audit, "Move old rows of the audit trail to a file.")
    archive.add_argument("--before", type=_day, required=True, metavar="YYYY-MM-DD", help="First UTC day to keep.")
    archive.add_argument("--to", type=Path, required=True, help="New file, one JSON object a line, with mode 0600.")
    _add_base_models(_add(commands, "base-models", None, "List base models and set the names they are known by."))
    return parser


def _add_base_models(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "list", _list_base_models, "List all base models with their names.")
    text = "Replace the further names of a base model: mirrors and quantized copies that adapters are trained on."
    names = _add(commands, "names", _name_base_model, text)
    names.add_argument("base_model", metavar="ID", help="Id of the base model, as 'list' shows it.")
    names.add_argument(
        "names", metavar="NAME", nargs="*", help="A name on the Hub, such as org/model; none removes all."
    )


def _add_admin_keys(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "list", _list_admin_keys, "List all admin keys, oldest first, including revoked ones.")
    create = _add(commands, "create", _create_admin_key, "Create an admin key and write it to a new file.")
    create.add_argument("--name", dest="key_name", required=True, help="What the key is for; shown by 'list'.")
    create.add_argument("--key-file", type=Path, required=True, help="New file for the key, with mode 0600.")
    revoke = _add(commands, "revoke", _revoke_admin_key, "Revoke an admin key permanently, except for the last one.")
    revoke.add_argument("key_id", metavar="ID", help="Id of the key, as 'list' shows it.")


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns 1, with a message on standard error, when the command fails for an expected reason."""
    arguments = _parser().parse_args(argv)
    if arguments.run in (_web, _worker, _bucket, _publish):
        from control_plane.settings import CONTROL_PARTS  # for the other commands it would be slow

        check_settings(*CONTROL_PARTS)
    telemetry.set_up(f"control_plane.{arguments.name}", TelemetrySettings())
    try:
        if arguments.run in (_web, _worker, _fleet, _batch):  # their logs have the tracebacks
            return int(arguments.run(arguments))
        from core.unreachable_stores import named_when_unreachable  # the database's client would slow --help down

        with named_when_unreachable():
            return int(arguments.run(arguments))
    except AppError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    with exit_on_invalid_settings():
        sys.exit(main())
