"""The options by which a command finds its control plane and its key, and the client that they give."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from tenora.command_line import show

if TYPE_CHECKING:
    from tenora.control_client import ControlPlaneClient

Access: TypeAlias = tuple[str | None, str | None]
"""A key and the address of a control plane, as given; None is this machine's."""

key_option: Final = click.option(
    "--key", envvar="TENORA_ADMIN_KEY", help="An admin key; by default that of this machine's platform."
)
tenant_key_option: Final = click.option(
    "--key",
    envvar="TENORA_API_KEY",
    help="The tenant's API key. Prefer the TENORA_API_KEY variable: it stays out of the process list.",
)
url_option: Final = click.option(
    "--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default this machine's."
)


def with_admin(access: Access, work: "Callable[[ControlPlaneClient], None]") -> None:
    """Run ``work`` as an admin: on this machine's control plane by default with its own admin key."""
    from tenora.stack import command

    key, control_url = access
    if control_url is None:
        control_url, key = command.control_url(), key or command.own_admin_key()
    with_client((key, control_url), work, no_key="no admin key; set TENORA_ADMIN_KEY")


def with_client(access: Access, work: "Callable[[ControlPlaneClient], None]", *, no_key: str) -> None:
    """Run ``work`` with a client of the named or of this machine's control plane. A refusal is shown as its message,
    and a missing key as ``no_key``.
    """
    from tenora.control_client import ControlPlaneClient
    from tenora.stack import command

    key, control_url = access
    if not key:
        raise click.ClickException(no_key)
    with ControlPlaneClient(control_url or command.control_url(), key) as client:
        work(client)


def send(access: Access, method: str, path: str, body: object, line: Callable[[Any], str]) -> None:
    """Make one change as an admin. Its answer is shown as the text that ``line`` makes of it, or as JSON."""

    def call(client: "ControlPlaneClient") -> None:
        answer = client.call(method, path, body).json()
        show(answer, lambda: click.echo(line(answer)))

    with_admin(access, call)
