"""The options by which a command finds its control plane and its key, and the client that they give."""

import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

import click

from tenora.client import Tenora
from tenora.command_line import show
from tenora.profiles import find_access

Access: TypeAlias = tuple[str | None, str | None]
"""A key and the address of a control plane, as given; None is the profile's or this machine's."""
_Command = TypeVar("_Command", bound=Callable[..., Any] | click.Command)
_Result = TypeVar("_Result")

key_option: Final = click.option(
    "--key", envvar="TENORA_ADMIN_KEY", help="An admin key; by default that of this machine's platform."
)
url_option: Final = click.option(
    "--control-url", envvar="TENORA_CONTROL_URL", help="The control plane; by default the profile's or this machine's."
)


def _keep(context: click.Context, _: click.Parameter, name: str | None) -> None:
    context.meta[__name__] = name or context.meta.get(__name__)


profile_option: Final = click.option(
    "--profile",
    envvar="TENORA_PROFILE",
    expose_value=False,
    callback=_keep,
    help="Name of the sign-in by 'tenora login' [default: default].",
)


def tenant_key_option(command: _Command) -> _Command:
    """Options for the key of a tenant's command: itself, or the profile that has it."""
    key = click.option(
        "--key",
        envvar="TENORA_API_KEY",
        help="The tenant's API key; by default that of 'tenora login'. Prefer the TENORA_API_KEY variable: it stays "
        "out of the process list.",
    )
    return key(profile_option(command))


def tenant_access(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Give a tenant's command its access as the first argument, from options of its own or of its group."""

    @functools.wraps(command)
    def run(*, key: str | None, control_url: str | None, **options: Any) -> _Result:
        of_group: Access = click.get_current_context().obj or (None, None)
        return command((key or of_group[0], control_url or of_group[1]), **options)

    return tenant_key_option(url_option(run))


def chosen_profile() -> str | None:
    """The profile that the command was given."""
    name: str | None = click.get_current_context().meta[__name__]
    return name


def with_admin(access: Access, work: Callable[[Tenora], None]) -> None:
    """Run ``work`` as an admin: on this machine's control plane by default with its own admin key."""
    key, url = access
    if url is None:
        from tenora.stack import command

        url, key = command.control_url(), key or command.own_admin_key()
    if not key:
        raise click.ClickException("no admin key; set TENORA_ADMIN_KEY")
    with Tenora(url, key) as client:
        work(client)


def with_client(access: Access, work: Callable[[Tenora], _Result], *, gateway_url: str | None = None) -> _Result:
    """Run ``work`` as a tenant: with what is given, else the profile, else this machine's control plane."""
    url, key, gateway_url = find_access(access[1], access[0], gateway_url, chosen_profile())
    if not key:
        where = f" for {url}" if url else ""
        raise click.ClickException(f"no API key{where}; run 'tenora login', or set TENORA_API_KEY")
    if url is None:
        from tenora.stack import command

        url = command.control_url()
    with Tenora(url, key, gateway_url=gateway_url) as client:
        return work(client)


def send(access: Access, method: str, path: str, body: object, line: Callable[[Any], str]) -> None:
    """Make one change as an admin. Its answer is shown as the text that ``line`` makes of it, or as JSON."""

    def call(client: Tenora) -> None:
        answer = client.call(method, path, body).json()
        show(answer, lambda: line(answer))

    with_admin(access, call)
