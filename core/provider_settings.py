"""The settings of outside providers that the control plane and the gateways share: the secret that encrypts providers'
API keys, and which providers may lie outside of the internet.
"""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from core.sealed_secrets import Sealer
from core.settings import Fragment, secret_bytes, split_commas

_HOST_AND_PORT: Final = re.compile(r"([a-z0-9.\-]+|\[[0-9a-f:]+\]):[0-9]{1,5}")
_PURPOSE: Final = b"tenora providers: API keys"


def _exact(hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        if not _HOST_AND_PORT.fullmatch(host):
            raise ValueError(f"{host!r} is no host with a port: write such as vllm.internal:8000, in lower case")
    return hosts


_Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_commas), AfterValidator(_exact)]


class ProviderSettings(Fragment):
    """What the control plane and the gateways know of outside providers. All must have the same values."""

    provider_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Secret that encrypts the API keys of outside providers. Without it, none can be registered.",
    )
    provider_secret_previous: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="The secret before a rotation. Keys that were encrypted with it can be used as long as it is set.",
    )
    provider_inward_hosts: _Hosts = Field(
        default=(),
        max_length=64,
        description="Hosts with ports, separated by commas, that may be providers although their addresses are not "
        "public, such as vllm.internal:8000. These may use http.",
    )

    def sealer(self) -> Sealer:
        """Encrypts and opens providers' keys."""
        return Sealer(secret_bytes(self.provider_secret, self.provider_secret_previous), purpose=_PURPOSE)
