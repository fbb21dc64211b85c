"""The options by which a command of an admin finds its control plane, and the client that they give."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import click

if TYPE_CHECKING:
    from tenora.control_client import ControlPlaneClient

AdminAccess: TypeAlias = tuple[str | None, str | None]
"""An admin key and the address of a control plane, as given; this machine's where they are None."""

key_option: Final = click.option(
    "--key", envvar="TENORA_ADMIN_KEY", help="An admin key; by default that of this machine's platform."
)
url_option: Final = click.option(
    "--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default this machine's."
)


def with_admin(access: AdminAccess, work: "Callable[[ControlPlaneClient], None]") -> None:
    """Run ``work`` with a client of the named or of this machine's control plane; a refusal is shown as its message."""
    from tenora.control_client import ControlPlaneClient
    from tenora.settings import StackSettings
    from tenora.stack import daemon
    from tenora.stack.status import running_stack

    key, control_url = access
    settings = StackSettings()
    if control_url is None:
        if not daemon.is_up(settings):
            raise click.ClickException(
                f"nothing runs under {settings.root}; start it with: tenora up --detach, or use --control-url"
            )
        stack = running_stack(settings)
        control_url, key = stack.addresses.control_url, key or stack.admin_key_file.read_text().strip()
    if not key:
        raise click.ClickException("no admin key; set TENORA_ADMIN_KEY")
    with ControlPlaneClient(control_url, key) as client:
        work(client)
