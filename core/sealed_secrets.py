"""Encrypts secrets that are stored or published: AES-256-GCM under keys that are derived from an operator's secrets.
The id of a secret's owner is authenticated too, so a secret that is copied to another row does not open.

Fails closed: what cannot be opened is not used. Which secrets there are, and where they lie, is not here.
"""

import os
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE_BYTES: Final = 12
_FORMAT: Final = b"\x01"


class CannotOpen(Exception):
    """A secret was encrypted with a key that this process does not have, or for another owner."""


class Sealer:
    """Encrypts with the first key, and opens with any of them. Keys of another ``purpose`` open nothing."""

    def __init__(self, keys: Sequence[bytes], *, purpose: bytes) -> None:
        self._keys = [derived_key(key, purpose) for key in keys]

    def __repr__(self) -> str:
        return "Sealer(…)"

    @property
    def usable(self) -> bool:
        """Whether there is a key."""
        return bool(self._keys)

    def seal(self, secret: str, owner_id: str) -> bytes:
        """The encrypted secret of this owner."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + AESGCM(self._keys[0]).encrypt(nonce, secret.encode(), owner_id.encode())

    def open(self, sealed: bytes, owner_id: str) -> str:
        """The secret of this owner. Raises CannotOpen."""
        nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        for key in self._keys if sealed[:1] == _FORMAT else ():
            try:
                return AESGCM(key).decrypt(nonce, ciphertext, owner_id.encode()).decode()
            except (InvalidTag, ValueError):  # ValueError: it is too short
                continue
        raise CannotOpen(f"the secret of {owner_id} does not open")


def derived_key(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, 32 bytes."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(key)
