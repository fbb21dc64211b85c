"""From the Authorization header to the tenant it speaks for. Fails closed; decided from headers and snapshot alone."""

from collections.abc import Iterable

import msgspec

from core import api_keys
from core.contracts import KeyGrant, TenantGrant
from core.errors import Forbidden, Unauthenticated
from data_plane.gateway.snapshot import Tables


class Caller(msgspec.Struct, frozen=True):
    """A good key and its active tenant."""

    key: KeyGrant
    tenant: TenantGrant


def authenticate(headers: Iterable[tuple[bytes, bytes]], tables: Tables, pepper: bytes) -> Caller:
    """The caller of a request. Raises Unauthenticated, or Forbidden for a good key that may not infer."""
    shown = [value for name, value in headers if name == b"authorization"]
    if not shown:
        raise Unauthenticated("No API key was given; send it as `Authorization: Bearer <key>`.")
    scheme, _, credential = shown[0].partition(b" ")
    key = credential.strip().decode("latin-1")
    if len(shown) > 1 or scheme.lower() != b"bearer" or not api_keys.is_well_formed(key):
        raise Unauthenticated("The API key is malformed; copy it again, whole.")
    grant = tables.keys.get(api_keys.hash_key(key, pepper))
    tenant = None if grant is None else tables.tenants.get(grant.tenant_id)
    if grant is None or tenant is None:
        raise Unauthenticated("The API key is not valid; it may have been revoked.")
    if tenant.status != "active":
        raise Forbidden("This tenant is suspended.", code="tenant_suspended")
    if "inference" not in grant.scopes:
        raise Forbidden("This key lacks the scope `inference`.", code="insufficient_scope")
    return Caller(grant, tenant)
