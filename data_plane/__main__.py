"""``python -m data_plane gateway`` and ``python -m data_plane replica``: the two processes of the data plane."""

import asyncio
import sys

import click

from core.quick_imports import quick_imports

with quick_imports():
    from core import telemetry
    from core.settings import check_settings, exit_on_invalid_settings
    from core.struct_types import complete_struct_types


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tenora's data plane."""


@main.command()
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that share the port."
)
def gateway(workers: int) -> None:
    """Serve the OpenAI-compatible API."""
    # Imported here: a replica's process must not load the gateway, nor the reverse.
    with quick_imports():
        from data_plane.gateway.server import serve
        from data_plane.gateway.settings import GatewaySettings

    serve(GatewaySettings(), workers=workers)


@main.command()
def replica() -> None:
    """Run one vLLM engine with its agent, until SIGTERM."""
    with quick_imports():
        from data_plane.engine.agent.run import run_replica
        from data_plane.engine.settings import REPLICA_PARTS, ReplicaSettings

    check_settings(*REPLICA_PARTS)  # the engine, a child process, reads some of them
    settings = ReplicaSettings()
    telemetry.set_up("replica", settings)
    complete_struct_types()
    sys.exit(asyncio.run(run_replica(settings)))


if __name__ == "__main__":
    with exit_on_invalid_settings():
        main()
