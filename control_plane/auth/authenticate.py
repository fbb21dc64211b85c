"""Who is calling: from the Authorization header to a principal, or a 401. What a principal may do is ``guards``.

Fails closed: a key that cannot be looked up is refused.
"""

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Engine

from control_plane.api_keys import service
from control_plane.tenants import service as tenants
from core.api_keys import hash_key, is_well_formed
from core.db import unit_of_work
from core.errors import Unauthenticated


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The owner of a good key. ``tenant_id`` is None for an admin; ``limited`` is a key with limits of its own."""

    key_id: str
    tenant_id: str | None
    scopes: frozenset[str]
    tenant_status: Literal["active", "suspended"] = "active"
    limited: bool = False

    @property
    def own_tenant_id(self) -> str:
        """The tenant a tenant's route works for. Never None there: the guard lets only tenants' keys in."""
        assert self.tenant_id is not None, "the guard of tenants' routes refuses admin keys"
        return self.tenant_id

    @property
    def caller(self) -> str:
        """Whose Idempotency-Keys these are."""
        return self.tenant_id or "admin"


@dataclass(frozen=True, kw_only=True)
class Authenticator:
    """Looks keys up in Postgres by their HMAC; one with a wrong shape or checksum is refused without a lookup."""

    engine: Engine
    pepper: bytes

    def authenticate(self, authorization: str | None) -> Principal:
        """The principal of an ``Authorization`` header; raises Unauthenticated."""
        scheme, _, secret = (authorization or "").partition(" ")
        if not authorization:
            raise Unauthenticated("No API key: send one as 'Authorization: Bearer tnr_…'.", code="missing_api_key")
        if scheme.lower() != "bearer" or not is_well_formed(secret.strip()):
            raise Unauthenticated("This is not an API key: check it for a typo or a missing part.")
        with unit_of_work(self.engine) as session:
            row = service.find_by_hash(session, hash_key(secret.strip(), self.pepper))
            if row is None:
                raise Unauthenticated("This API key is unknown or was revoked.")
            return Principal(
                key_id=row.id,
                tenant_id=row.tenant_id,
                scopes=frozenset(row.scopes),
                tenant_status=tenants.status(session, row.tenant_id) if row.tenant_id else "active",
                limited=row.limits is not None,
            )
