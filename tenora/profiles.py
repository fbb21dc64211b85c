"""Profiles: for each name a control plane, its gateways and the API key that `tenora login` got there. They are in one
file that only its owner reads. Which key a call uses is decided here, for the command and for ``tenora.client``.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from core.errors import InvalidSettings

DEFAULT: Final = "default"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One sign-in. Addresses have no slash at their end."""

    control_url: str
    gateway_url: str
    tenant: str
    key_id: str
    api_key: str = field(repr=False)


def profiles_file() -> Path:
    """Where the profiles are: below XDG_CONFIG_HOME, or else ~/.config."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".config") / "tenora" / "profiles.json"


def read_profiles() -> dict[str, Profile]:
    """All profiles by name. Raises InvalidSettings for a file that holds something else."""
    file = profiles_file()
    try:
        return {name: Profile(**kept) for name, kept in json.loads(file.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidSettings(f"{file} has no profiles: {error}. Remove it, and run: tenora login") from error


def write_profiles(profiles: Mapping[str, Profile]) -> None:
    """Replace all profiles at once: a reader sees those of before or these."""
    file = profiles_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    handle, partial = tempfile.mkstemp(dir=file.parent)  # closed to other users from the start
    with os.fdopen(handle, "w") as out:
        json.dump({name: asdict(each) for name, each in profiles.items()}, out, indent=2)
    Path(partial).replace(file)


def find_access(
    url: str | None, key: str | None, gateway_url: str | None = None, profile: str | None = None
) -> tuple[str | None, str | None, str | None]:
    """Control plane, API key and gateways of a call: as given, else as the environment says, else as the profile says.
    A profile's key goes to its own control plane alone. Raises InvalidSettings for a named profile that is not there.
    """
    url, key = url or os.environ.get("TENORA_CONTROL_URL"), key or os.environ.get("TENORA_API_KEY")
    gateway_url = gateway_url or os.environ.get("TENORA_GATEWAY_URL")
    if key:
        return url, key, gateway_url
    named = profile or os.environ.get("TENORA_PROFILE")
    kept = read_profiles().get(named or DEFAULT)
    if kept is None and named:
        raise InvalidSettings(f"There is no profile {named!r}. Make it with: tenora login --profile {named}")
    if kept is None or (url and url.rstrip("/") != kept.control_url):
        return url, None, gateway_url
    return kept.control_url, kept.api_key, gateway_url or kept.gateway_url
