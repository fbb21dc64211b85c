"""`tenora ray-placer`: runs replicas of pools on a Ray cluster."""

import sys

import click


@click.command(short_help="Run the replicas of pools on a Ray cluster.")
@click.argument("command", nargs=-1)
def ray_placer(command: tuple[str, ...]) -> None:
    """Keep on a Ray cluster what the fleet process wants, until SIGTERM.

    Start it on a machine of the cluster, beside Ray's head. A node starts each replica with COMMAND, by default
    `python -m data_plane replica`. Secrets and addresses of a replica are the environment of `ray start` on its node.
    """
    try:
        import ray  # noqa: F401 - whether it is there
    except ImportError:
        raise click.ClickException(
            "Ray is not installed here. Install requirements/ray.lock beside Tenora: sh requirements/ray.sh."
        ) from None
    from core.settings import exit_on_invalid_settings
    from tenora.ray_placer.process import run
    from tenora.ray_placer.settings import RayPlacerSettings

    with exit_on_invalid_settings():
        settings = RayPlacerSettings()
    run(settings, command or (sys.executable, "-m", "data_plane", "replica"))
