"""Creates, lists and revokes API keys, and reads what gateways need to know of them.

A secret appears only in the result of ``mint``.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from sqlmodel import Session, col, func, select

from control_plane.api_keys.models import ApiKey
from control_plane.api_keys.schemas import ApiKeyCreated, ApiKeyView, KeyLimitsBody
from control_plane.audit import service as audit
from control_plane.auth.authenticate import Principal
from control_plane.paging import Page, page_of
from control_plane.publishing.outbox import publish_change
from control_plane.tenants import service as tenants
from core import clock
from core.api_keys import ADMIN_SCOPES, hash_key, mint_key, redact
from core.contracts.grants import KeyGrant, KeyLimits
from core.errors import Conflict, Forbidden, NotFound
from core.struct_types import view_of

_SHOWN_ONCE = "Store this key now. It is shown only once."
_NOT_KEPT = (
    "This is a replay without the secret, which was only in the first response. If you lost it, revoke this key and "
    "create "
    "another one."
)


def mint(
    session: Session,
    pepper: bytes,
    *,
    tenant_id: str,
    name: str,
    scopes: Sequence[str],
    actor: str,
    live_max: int,
    limits: KeyLimitsBody | None = None,
) -> ApiKeyCreated:
    """Create a key of an existing tenant. Gateways accept it once it is published. Raises NotFound without the tenant,
    and Forbidden where it has ``live_max`` keys that are not revoked.
    """
    tenants.lock(session, tenant_id)  # so that no two requests create the last key
    mine = select(func.count()).select_from(ApiKey).where(ApiKey.tenant_id == tenant_id)
    if session.exec(mine.where(col(ApiKey.revoked_at).is_(None))).one() >= live_max:
        raise Forbidden(
            f"api_keys: a tenant may have at most {live_max} that are not revoked. Revoke one that is no longer used.",
            code="api_key_quota_exceeded",
        )
    secret = mint_key("live")
    row = ApiKey(
        tenant_id=tenant_id,
        name=name,
        key_hash=hash_key(secret, pepper),
        redacted=redact(secret),
        scopes=sorted(set(scopes)),
        limits=_set(limits) or None,
    )
    session.add(row)
    publish_change(session, "keys", row.key_hash)
    audit.record(
        session,
        actor=actor,
        action="api_key.created",
        target=row.id,
        tenant_id=tenant_id,
        details={"name": name, "scopes": row.scopes, "limits": row.limits},
    )
    return view_of(row, ApiKeyCreated, key=secret, note=_SHOWN_ONCE)


def without_secret(created: ApiKeyCreated) -> ApiKeyCreated:
    """The response that is stored for an Idempotency-Key: without the secret."""
    return msgspec.structs.replace(created, key=None, note=_NOT_KEPT)


def store_admin_key(
    session: Session, secret: str, pepper: bytes, *, name: str = "bootstrap", actor: str = "bootstrap"
) -> bool:
    """Store ``secret`` as an admin key. Returns False where it is one already, even if revoked. Admin keys are never
    published to gateways.
    """
    key_hash = hash_key(secret, pepper)
    if session.exec(select(ApiKey.id).where(ApiKey.key_hash == key_hash)).first():
        return False
    row = ApiKey(name=name, key_hash=key_hash, redacted=redact(secret), scopes=list(ADMIN_SCOPES))
    session.add(row)
    audit.record(
        session, actor=actor, action="api_key.created", target=row.id, details={"name": name, "scopes": row.scopes}
    )
    return True


def list_admin_keys(session: Session) -> list[ApiKeyView]:
    """All admin keys, including revoked ones, oldest first."""
    rows = session.exec(select(ApiKey).where(col(ApiKey.tenant_id).is_(None)).order_by(col(ApiKey.id)))
    return [view_of(row, ApiKeyView) for row in rows]


def revoke_admin_key(session: Session, key_id: str, *, actor: str) -> None:
    """Revoke an admin key permanently; the next request with it is refused. Idempotent. Raises NotFound, and Conflict
    for the last one that is not revoked.
    """
    admins = select(ApiKey).where(col(ApiKey.tenant_id).is_(None)).with_for_update()  # so that no two revoke the last
    rows = {row.id: row for row in session.exec(admins)}
    row = rows.get(key_id)
    if row is None:
        raise NotFound(f"No admin key has the id {key_id!r}. List them with 'admin-keys list'.")
    if row.revoked_at is not None:
        return
    if sum(each.revoked_at is None for each in rows.values()) == 1:
        raise Conflict("This is the last admin key. Create another one first with 'admin-keys create'.")
    row.revoked_at = clock.now()
    audit.record(session, actor=actor, action="api_key.revoked", target=row.id)


def list_keys(session: Session, *, tenant_id: str, cursor: str | None, limit: int) -> Page[ApiKeyView]:
    """The tenant's keys, including revoked ones, newest first."""
    mine = select(ApiKey).where(ApiKey.tenant_id == tenant_id)
    return page_of(session, mine, col(ApiKey.id), partial(view_of, view=ApiKeyView), cursor=cursor, limit=limit)


def get_key(session: Session, *, tenant_id: str, key_id: str) -> ApiKeyView:
    """One of the tenant's keys. Raises NotFound."""
    return view_of(_find(session, tenant_id=tenant_id, key_id=key_id), ApiKeyView)


def revoke(session: Session, *, tenant_id: str, key_id: str, actor: str) -> None:
    """Revoke a key of the tenant permanently. Idempotent. Gateways refuse the key once the change is published."""
    row = _find(session, tenant_id=tenant_id, key_id=key_id, lock=True)
    if row.revoked_at is not None:
        return
    row.revoked_at = clock.now()
    publish_change(session, "keys", row.key_hash)
    audit.record(session, actor=actor, action="api_key.revoked", target=row.id, tenant_id=tenant_id)


def grant(session: Session, key_hash: str) -> KeyGrant | None:
    """The published form of the key with this HMAC. None for a revoked, unknown or admin key."""
    row = session.exec(select(ApiKey).where(ApiKey.key_hash == key_hash)).first()
    return _grant(row) if row else None


def all_grants(session: Session) -> Iterator[tuple[str, KeyGrant]]:
    """The published form of every usable tenant key, by its HMAC."""
    live = select(ApiKey).where(col(ApiKey.revoked_at).is_(None), col(ApiKey.tenant_id).is_not(None))
    for row in session.exec(live.execution_options(yield_per=1000)):
        value = _grant(row)
        assert value is not None, "the query selects only usable keys"
        yield row.key_hash, value


def usable_hash(session: Session, key_id: str) -> str | None:
    """The HMAC of a key; None where it was revoked."""
    return session.exec(select(ApiKey.key_hash).where(ApiKey.id == key_id, col(ApiKey.revoked_at).is_(None))).first()


def find_principal(session: Session, key_hash: str) -> Principal | None:
    """The owner of a key that is not revoked, by the key's HMAC, for ``auth``."""
    row = session.exec(select(ApiKey).where(ApiKey.key_hash == key_hash, col(ApiKey.revoked_at).is_(None))).first()
    if row is None:
        return None
    return Principal(
        key_id=row.id,
        tenant_id=row.tenant_id,
        scopes=frozenset(row.scopes),
        tenant_status=tenants.status(session, row.tenant_id) if row.tenant_id else "active",
        limited=row.limits is not None,
    )


def _find(session: Session, *, tenant_id: str, key_id: str, lock: bool = False) -> ApiKey:
    mine = select(ApiKey).where(ApiKey.id == key_id, ApiKey.tenant_id == tenant_id)
    row = session.exec(mine.with_for_update() if lock else mine).first() if key_id.isascii() else None
    if row is None:
        raise NotFound("API key not found.", code="api_key_not_found")
    return row


def _grant(row: ApiKey) -> KeyGrant | None:
    if row.tenant_id is None or row.revoked_at is not None:
        return None
    return KeyGrant(key_id=row.id, tenant_id=row.tenant_id, scopes=tuple(row.scopes), limits=_limits(row))


def _set(limits: KeyLimitsBody | None) -> dict[str, object]:
    """The limits that are set."""
    named = {} if limits is None else msgspec.structs.asdict(limits)
    return {name: limit for name, limit in named.items() if limit is not None}


def _limits(row: ApiKey) -> KeyLimits | None:
    return None if row.limits is None else msgspec.convert(row.limits, KeyLimits)
