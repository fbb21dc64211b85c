"""Authenticates a caller: from the Authorization header to a principal, or a 401. ``guards`` decides what a principal
may do; ``api_keys`` knows the keys.

Fails closed: a key that cannot be looked up is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import Engine
from sqlmodel import Session

from control_plane import tenant_scope
from core.api_keys import hash_key, is_well_formed, shown_keys
from core.db import unit_of_work
from core.errors import Unauthenticated

ADMIN_PERSON: Final = "admin:"
"""Begins the ``key_id`` of a person who acts for the platform; the person's id follows."""


@dataclass(frozen=True)
class Pepper:
    """The secret that API keys are hashed with. A separate type keeps it out of logs and apart from other bytes. Keys
    that were hashed with ``previous`` are still found.
    """

    value: bytes
    previous: bytes | None = None

    def __repr__(self) -> str:
        return "Pepper(…)"

    @property
    def all(self) -> tuple[bytes, ...]:
        """The current secret, and the one before a rotation."""
        return (self.value,) if self.previous is None else (self.value, self.previous)


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The owner of a valid key, or a person in the console, whose id ``key_id`` is then. ``tenant_id`` is None for an
    admin; ``limited`` marks a key with its own limits; ``read_only`` refuses every change.
    """

    key_id: str
    tenant_id: str | None
    scopes: frozenset[str]
    tenant_status: Literal["active", "suspended"] = "active"
    limited: bool = False
    read_only: bool = False

    @property
    def own_tenant_id(self) -> str:
        """The tenant that a tenant route works for. It is never None there: the guard admits only tenant keys."""
        assert self.tenant_id is not None, "the guard of tenant routes refuses admin keys"
        return self.tenant_id

    @property
    def caller(self) -> str:
        """The namespace of this caller's Idempotency-Keys."""
        return self.tenant_id or "admin"


@dataclass(frozen=True, kw_only=True)
class Authenticator:
    """Finds principals by the HMAC of their key. A key with a wrong shape or checksum is refused without a lookup.
    ``find_principal`` reads Postgres: it returns None for an unknown, expired or revoked key.
    """

    engine: Engine
    pepper: Pepper
    find_principal: Callable[[Session, str], Principal | None]

    def authenticate(self, *authorizations: str) -> Principal:
        """The principal of the ``Authorization`` headers; raises Unauthenticated."""
        keys = shown_keys(authorizations)
        if not keys:
            raise Unauthenticated(
                "No API key. Send one in the header 'Authorization: Bearer tnr_…'.", code="missing_api_key"
            )
        key = keys.pop()
        if keys or not is_well_formed(key):
            raise Unauthenticated("This is not a valid API key. Check it for a typo or a missing part.")
        with tenant_scope.every_tenant(), unit_of_work(self.engine) as session:
            principal = self.find_principal(session, hash_key(key, self.pepper.value))
            if principal is None and self.pepper.previous is not None:
                principal = self.find_principal(session, hash_key(key, self.pepper.previous))
        if principal is None:
            raise Unauthenticated("This API key is unknown, has expired or was revoked; create another key.")
        return principal
