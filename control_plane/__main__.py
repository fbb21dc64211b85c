"""``python -m control_plane``: starts the web application or the worker, and runs an operator's one-time commands."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from core import telemetry
from core.errors import AppError
from core.settings import KeySettings, PostgresSettings, TelemetrySettings


def _web(_: argparse.Namespace) -> int:
    from control_plane.app import serve
    from control_plane.settings import ControlSettings

    serve(ControlSettings())
    return 0


def _worker(_: argparse.Namespace) -> int:
    from control_plane import worker
    from control_plane.settings import ControlSettings

    return worker.run(ControlSettings())


def _migrate(_: argparse.Namespace) -> int:
    from control_plane import operations

    operations.migrate(PostgresSettings())
    print("migrated to the newest version")  # noqa: T201 - a command answers on its standard output
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


def _bootstrap(arguments: argparse.Namespace) -> int:
    from control_plane import operations

    keys = KeySettings()
    print(operations.bootstrap(PostgresSettings(), keys, arguments.admin_key_file))  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m control_plane", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run, name=name)
        return command

    add("web", _web, "Serve the REST API on TENORA_CONTROL_HOST and TENORA_CONTROL_PORT.")
    add("worker", _worker, "Publish changes to gateways, validate uploads and clean up, until SIGTERM.")
    add("migrate", _migrate, "Migrate the database to the newest version.")
    add("bucket", _bucket, "Create the bucket and set its CORS rules for TENORA_CONTROL_CORS_ORIGINS.")
    add("publish", _publish, "Rebuild the snapshot that gateways follow from Postgres and replace it in one step.")
    bootstrap = add("bootstrap", _bootstrap, "Create the first admin key. Running it again changes nothing.")
    bootstrap.add_argument(
        "--admin-key-file",
        type=Path,
        required=True,
        help="File of the admin key. It is created with mode 0600 if it is missing.",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns 1, with a message on standard error, when the command fails for an expected reason."""
    arguments = _parser().parse_args(argv)
    telemetry.set_up(f"control_plane.{arguments.name}", TelemetrySettings())
    try:
        return int(arguments.run(arguments))
    except AppError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
