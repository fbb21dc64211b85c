"""Authenticates a request: from its Authorization header to its key and tenant, by the snapshot alone. Fails closed."""

from collections.abc import Iterable

import msgspec

from core import api_keys, clock
from core.contracts.grants import KeyGrant, Limits, TenantGrant
from core.errors import Forbidden, Unauthenticated
from core.line_credential import LineCredential
from data_plane.gateway.state.snapshot import Tables


class Caller(msgspec.Struct, frozen=True):
    """A valid key and its active tenant."""

    key: KeyGrant
    tenant: TenantGrant

    @property
    def limits(self) -> Limits:
        """The tenant's limits, with the key's own limits on one request where these are lower."""
        limits, own = self.tenant.limits, self.key.limits
        if own is None or (own.context_tokens is None and own.output_tokens is None and own.service_classes is None):
            return limits
        return msgspec.structs.replace(
            limits,
            context_tokens=min(limits.context_tokens, own.context_tokens or limits.context_tokens),
            output_tokens=min(limits.output_tokens, own.output_tokens or limits.output_tokens),
            service_classes=tuple(
                each for each in limits.service_classes if own.service_classes is None or each in own.service_classes
            ),
        )

    def may_call(self, *names: str) -> bool:
        """Whether the key may call a model that has these names."""
        return self.key.models is None or not set(self.key.models).isdisjoint(names)


def authenticate(headers: Iterable[tuple[bytes, bytes]], tables: Tables, *peppers: bytes) -> Caller:
    """The caller of a request, whose key was hashed with one of these peppers. Raises Unauthenticated, or Forbidden for
    a valid key that may not run inference.
    """
    keys = api_keys.shown_keys([value.decode("latin-1") for name, value in headers if name == b"authorization"])
    if not keys:
        raise Unauthenticated("The request has no API key; send it as `Authorization: Bearer <key>`.")
    key = keys.pop()
    if keys:
        raise Unauthenticated("The request has two different API keys; send one.")
    if not api_keys.is_well_formed(key):
        raise Unauthenticated("The API key is malformed; copy the whole key again.")
    if key.startswith("tnr_admin_"):
        raise Unauthenticated("This is an admin key. Use a key of a tenant, which begins with tnr_live_.")
    grant = None
    for pepper in peppers:  # one, except while it is rotated
        grant = grant or tables.keys.get(api_keys.hash_key(key, pepper))
    return _caller(grant, tables)


def authenticate_line(line: LineCredential, tables: Tables) -> Caller:
    """The caller of a line of a batch: the key that made the batch. Raises as ``authenticate``."""
    return _caller(tables.keys.get(line.key_hash), tables)


def _caller(grant: KeyGrant | None, tables: Tables) -> Caller:
    tenant = None if grant is None else tables.tenants.get(grant.tenant_id)
    if grant is None or tenant is None:
        raise Unauthenticated("This API key is unknown or was revoked; create another key.")
    if grant.expires_at_ms is not None and grant.expires_at_ms <= clock.now_ms():
        raise Unauthenticated("This API key has expired; create another key.", code="api_key_expired")
    if tenant.status != "active":
        raise Forbidden("This tenant is suspended.", code="tenant_suspended")
    if "inference" not in grant.scopes:
        raise Forbidden("This key lacks the scope `inference`.", code="insufficient_scope")
    return Caller(grant, tenant)
