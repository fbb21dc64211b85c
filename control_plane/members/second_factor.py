"""The second factor: codes of an authenticator app (TOTP, RFC 6238), and recovery codes that each count once."""

import base64
import os
import time
from typing import Final
from urllib.parse import quote

from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.hotp import HOTP

from control_plane.auth.authenticate import Pepper
from control_plane.members.models import User
from core.api_keys import hash_key
from core.sealed_secrets import Sealer

STEP_S: Final = 30
RECOVERY_CODES: Final = 10
_DIGITS: Final = 6
_DRIFT_STEPS: Final = 1  # a phone's clock may be half a minute wrong
_SECRET_BYTES: Final = 20


class SecondFactors:
    """Seals, opens and checks the second factors of people. ``pepper`` seals them and hashes recovery codes."""

    def __init__(self, pepper: Pepper) -> None:
        self._pepper = pepper
        self._sealer = Sealer(pepper.all, purpose=b"tenora console: second factor")

    def turn_on(self, user: User, secret: str, code: str) -> list[str] | None:
        """Store the secret if the code shows that the app has it. Returns recovery codes to show once; None for a wrong
        code.
        """
        step = _step_of(secret, code)
        if step is None:
            return None
        user.totp_sealed, user.totp_step = self._sealer.seal(secret, user.id), step
        codes = [base64.b32encode(os.urandom(10)).decode().lower() for _ in range(RECOVERY_CODES)]
        user.recovery_hashes = [self._hash(user, each) for each in codes]
        return codes

    def accepts(self, user: User, code: str) -> bool:
        """Whether this is a code of the person's app, or an unused recovery code; either counts once, so the caller
        holds the row's lock and commits.
        """
        assert user.totp_sealed is not None, "asked only of people with a second factor"
        plain = "".join(code.split()).lower()
        recovery = self._hash(user, plain)
        if recovery in user.recovery_hashes:
            user.recovery_hashes = [each for each in user.recovery_hashes if each != recovery]
            return True
        step = _step_of(self._sealer.open(user.totp_sealed, user.id), plain)
        if step is None or step <= user.totp_step:
            return False
        user.totp_step = step
        return True

    def _hash(self, user: User, code: str) -> str:
        return hash_key(f"{user.id} {code}", self._pepper.value)


def turn_off(user: User) -> None:
    """Remove the second factor and its recovery codes."""
    user.totp_sealed, user.totp_step, user.recovery_hashes = None, 0, []


def new_totp_secret() -> str:
    """A secret in base32, as authenticator apps read it."""
    return base64.b32encode(os.urandom(_SECRET_BYTES)).decode()


def totp_uri(secret: str, email: str) -> str:
    """The ``otpauth`` address that an app reads from a QR code."""
    return f"otpauth://totp/{quote(f'Tenora:{email}')}?secret={secret}&issuer=Tenora"


def totp_code(secret: str, step: int) -> str:
    """The code of a time step."""
    hotp = HOTP(base64.b32decode(secret), _DIGITS, SHA1())  # noqa: S303 - authenticator apps use SHA-1
    return hotp.generate(step).decode()


def _step_of(secret: str, code: str) -> int | None:
    """The time step whose code this is; None for any other text."""
    now = int(time.time()) // STEP_S
    steps = range(now - _DRIFT_STEPS, now + _DRIFT_STEPS + 1)
    return next((step for step in steps if totp_code(secret, step) == code), None)
