"""Hashes passwords with Argon2id (RFC 9106) at OWASP's parameters of 2026: 19 MiB, two passes, one lane.

Which passwords are refused: short ones and those that name the person. Longer rules make people choose worse ones
(NIST SP 800-63B).
"""

import os
from typing import Final

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from core.errors import InvalidRequest

PASSWORD_CHARACTERS_MIN: Final = 12
PASSWORD_CHARACTERS_MAX: Final = 200
_MEMORY_KIB: Final = 19 * 1024


def hash_password(password: str) -> str:
    """The hash with its parameters and salt, as PHC text. Takes about 30 ms of processor time."""
    kdf = Argon2id(salt=os.urandom(16), length=32, iterations=2, lanes=1, memory_cost=_MEMORY_KIB)
    return kdf.derive_phc_encoded(password.encode())


def is_password(password: str, password_hash: str) -> bool:
    """Whether the hash is of this password. As slow as hashing."""
    try:
        Argon2id.verify_phc_encoded(password[:PASSWORD_CHARACTERS_MAX].encode(), password_hash)
    except InvalidKey:
        return False
    return True


NO_PASSWORD: Final = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"  # noqa: S105
"""A hash that no password has. It is compared with where there is no such person, so that both answers take as long."""


def require_good_password(password: str, *, email: str) -> None:
    """Raises InvalidRequest for a password that is short, or that is the person's e-mail address."""
    if not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
        raise InvalidRequest(
            f"password: use {PASSWORD_CHARACTERS_MIN} to {PASSWORD_CHARACTERS_MAX} characters, such as four words.",
            code="weak_password",
            param="password",
        )
    if password.lower() in (email, email.partition("@")[0]) or len(set(password)) < 4:
        raise InvalidRequest(
            "password: do not use your e-mail address, or the same few characters again and again.",
            code="weak_password",
            param="password",
        )
