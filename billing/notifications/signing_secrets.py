"""Makes the signing secrets of webhooks, encrypts them for the database, and makes the codes that confirm addresses.

The keys are derived from ``TENORA_NOTIFICATIONS_KEY`` (``core.sealed_secrets``). Fails closed: what cannot be opened
signs nothing.
"""

import base64
import hmac
import os
from collections.abc import Sequence
from typing import Final

from core.errors import Unavailable
from core.sealed_secrets import CannotOpen, Sealer, derived_key

SECRET_BYTES: Final = 32  # Standard Webhooks asks for 24 to 64
_PREFIX: Final = "whsec_"
_CODE_BYTES: Final = 10  # 16 characters of base32


class SecretUnreadable(Unavailable):
    """A stored secret was encrypted with a key that this process does not have."""

    default_code = "notification_secret_unreadable"


class SecretBox:
    """Encrypts with the first key, and opens with any of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._sealer = Sealer(keys, purpose=b"tenora notifications: encryption")
        self._code_keys = [derived_key(key, b"tenora notifications: confirmation") for key in keys]

    def __repr__(self) -> str:
        return "SecretBox(…)"

    @property
    def usable(self) -> bool:
        """Whether there is a key."""
        return self._sealer.usable

    def new_secret(self) -> str:
        """A signing secret in the format of Standard Webhooks: ``whsec_`` and base64."""
        return _PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()

    def seal(self, secret: str, endpoint_id: str) -> bytes:
        """The encrypted secret of this endpoint."""
        return self._sealer.seal(secret, endpoint_id)

    def open(self, sealed: bytes, endpoint_id: str) -> str:
        """The secret of this endpoint. Raises SecretUnreadable."""
        try:
            return self._sealer.open(sealed, endpoint_id)
        except CannotOpen:
            raise SecretUnreadable(
                f"the signing secret of {endpoint_id} does not open: set TENORA_NOTIFICATIONS_KEY_PREVIOUS to the key "
                "before the rotation, or rotate the endpoint's secret."
            ) from None

    def confirmation_code(self, endpoint_id: str, address: str) -> str:
        """The code that proves that its sender reads mail at ``address``. It is computed, and stored nowhere."""
        return _code(self._code_keys[0], endpoint_id, address)

    def confirms(self, code: str, endpoint_id: str, address: str) -> bool:
        """Whether this is the code of the endpoint. Capitals and spaces make no difference."""
        given = "".join(code.split()).lower().encode()
        return any(hmac.compare_digest(given, _code(key, endpoint_id, address).encode()) for key in self._code_keys)


def _code(key: bytes, endpoint_id: str, address: str) -> str:
    digest = hmac.digest(key, f"{endpoint_id}\n{address}".encode(), "sha256")
    return base64.b32encode(digest[:_CODE_BYTES]).decode().lower()
