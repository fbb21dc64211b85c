"""`tenora login` and `logout`: get an API key by a code that a person confirms in the console, and revoke it again."""

import getpass
import socket
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import click

from core.visible_text import visible
from tenora.client import Tenora, TenoraError, refusal
from tenora.command_line import json_option, show
from tenora.control_access import chosen_profile, profile_option, url_option
from tenora.profiles import DEFAULT, Profile, profiles_file, read_profiles, write_profiles

_PATH: Final = "/device-authorizations"
_LABEL_MAX: Final = 100
_TOO_MANY: Final = 429
_GONE: Final = (401, 404)
"""Answers to the revocation of a key that is revoked already."""


@click.command()
@url_option
@profile_option
@click.option("--label", help="Name of this machine, which the console shows [default: USER at HOST].")
@click.option("--browser", is_flag=True, help="Open the console's page in a browser.")
@json_option
def login(*, control_url: str | None, label: str | None, browser: bool) -> None:
    """Sign in: show a code, wait until a person has confirmed it in the console, and keep the API key in a profile."""
    name = chosen_profile() or DEFAULT
    before = read_profiles().get(name)
    with Tenora(_control_plane(control_url, before), "") as client:
        asked = client.call("POST", _PATH, {"label": (label or _own_label())[:_LABEL_MAX]}, repeat=False).json()
        click.echo(visible(f"Open {asked['url']} and type the code {asked['code']}"), err=True)
        if browser and asked["url"].startswith(("https://", "http://")):
            click.launch(f"{asked['url']}?code={quote(asked['code'])}")
        click.echo("waiting until it is confirmed; Ctrl-C gives up", err=True)
        signed_in = _key_of(client, asked)
        made, url = signed_in["key"], client.url
    profile = Profile(
        control_url=url,
        gateway_url=signed_in["gateway_url"],
        tenant=signed_in["tenant"],
        key_id=made["id"],
        api_key=made["key"],
    )
    write_profiles({**read_profiles(), name: profile})
    if before is not None:
        with suppress(TenoraError):  # its platform may be gone
            _revoke(before)
    answer = {each: getattr(profile, each) for each in ("tenant", "control_url", "gateway_url", "key_id")}
    text = f"signed in to {profile.tenant} at {url}; the key {made['redacted']} is in {profiles_file()}"
    show({"profile": name, "scopes": made["scopes"], **answer}, lambda: text)


@click.command()
@profile_option
@json_option
def logout() -> None:
    """Revoke the API key of a profile, and remove the profile."""
    name, profiles = chosen_profile() or DEFAULT, read_profiles()
    if name not in profiles:
        raise click.ClickException(f"there is no profile {name!r}; nothing was revoked")
    _revoke(profiles.pop(name))
    write_profiles(profiles)
    show({"profile": name, "revoked": True}, lambda: f"signed out: the key of profile {name} is revoked")


def _control_plane(given: str | None, before: Profile | None) -> str:
    """The address as given, else that of the last sign-in, else this machine's."""
    if given is not None:
        return given
    if before is not None:
        return before.control_url
    from tenora.stack import command

    return command.control_url()


def _own_label() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return visible(f"{user} at {socket.gethostname()}")


def _key_of(client: Tenora, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer that has the key, once the code is confirmed. Raises TenoraError when it has expired."""
    while True:
        time.sleep(asked["poll_s"])
        answer = client.call("POST", f"{_PATH}/poll", {"device_code": asked["device_code"]}, refuse=False)
        if answer.is_error and answer.status_code != _TOO_MANY:
            raise refusal(answer)
        found: dict[str, Any] = answer.json()
        if answer.is_success and found["key"]:
            return found


def _revoke(profile: Profile) -> None:
    with Tenora(profile.control_url, profile.api_key) as client:
        try:
            client.revoke_key(profile.key_id)
        except TenoraError as error:
            if error.facts.get("status") not in _GONE:
                raise
