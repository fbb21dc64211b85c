"""Makes the signing secrets of webhooks, encrypts them for the database, and makes the codes that confirm addresses.

AES-256-GCM under a key that is derived from ``TENORA_NOTIFICATIONS_KEY``. The endpoint's id is authenticated too, so a
secret that is copied to another row does not open. Fails closed: what cannot be opened signs nothing.
"""

import base64
import hmac
import os
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from core.errors import Unavailable

SECRET_BYTES: Final = 32  # Standard Webhooks asks for 24 to 64
_PREFIX: Final = "whsec_"
_NONCE_BYTES: Final = 12
_FORMAT: Final = b"\x01"
_CODE_BYTES: Final = 10  # 16 characters of base32


class SecretUnreadable(Unavailable):
    """A stored secret was encrypted with a key that this process does not have."""

    default_code = "notification_secret_unreadable"


class SecretBox:
    """Encrypts with the first key, and opens with any of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = [_derived(key, b"tenora notifications: encryption") for key in keys]
        self._code_keys = [_derived(key, b"tenora notifications: confirmation") for key in keys]

    def __repr__(self) -> str:
        return "SecretBox(…)"

    @property
    def usable(self) -> bool:
        """Whether there is a key."""
        return bool(self._keys)

    def new_secret(self) -> str:
        """A signing secret in the format of Standard Webhooks: ``whsec_`` and base64."""
        return _PREFIX + base64.b64encode(os.urandom(SECRET_BYTES)).decode()

    def seal(self, secret: str, endpoint_id: str) -> bytes:
        """The encrypted secret of this endpoint."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + AESGCM(self._keys[0]).encrypt(nonce, secret.encode(), endpoint_id.encode())

    def open(self, sealed: bytes, endpoint_id: str) -> str:
        """The secret of this endpoint. Raises SecretUnreadable."""
        nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        for key in self._keys if sealed[:1] == _FORMAT else ():
            try:
                return AESGCM(key).decrypt(nonce, ciphertext, endpoint_id.encode()).decode()
            except InvalidTag:
                continue
        raise SecretUnreadable(
            f"the signing secret of {endpoint_id} does not open: set TENORA_NOTIFICATIONS_KEY_PREVIOUS to the key "
            "before the rotation, or rotate the endpoint's secret."
        )

    def confirmation_code(self, endpoint_id: str, address: str) -> str:
        """The code that proves that its sender reads mail at ``address``. It is computed, and stored nowhere."""
        return _code(self._code_keys[0], endpoint_id, address)

    def confirms(self, code: str, endpoint_id: str, address: str) -> bool:
        """Whether this is the code of the endpoint. Capitals and spaces make no difference."""
        given = "".join(code.split()).lower().encode()
        return any(hmac.compare_digest(given, _code(key, endpoint_id, address).encode()) for key in self._code_keys)


def _derived(key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(key)


def _code(key: bytes, endpoint_id: str, address: str) -> str:
    digest = hmac.digest(key, f"{endpoint_id}\n{address}".encode(), "sha256")
    return base64.b32encode(digest[:_CODE_BYTES]).decode().lower()
