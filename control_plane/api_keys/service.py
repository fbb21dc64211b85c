"""Creates, lists, rotates and revokes API keys, and reads what gateways need to know of them.

A secret appears only in the results of ``mint`` and ``rotate``. A rotated key keeps its id, and with it its limits, its
usage and its spend limits; until the end of the overlap both of its secrets are published.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlmodel import Session, col, func, select

from control_plane.api_keys.models import ApiKey, is_usable
from control_plane.api_keys.schemas import ApiKeyCreated, ApiKeyView, KeyLimitsBody, NewApiKey, Overlap
from control_plane.audit import service as audit
from control_plane.auth.authenticate import Principal
from control_plane.paging import Page, page_of
from control_plane.publishing.outbox import publish_bulk, publish_change
from control_plane.tenants import service as tenants
from core import clock
from core.api_keys import ADMIN_SCOPES, hash_key, mint_key, redact
from core.contracts.grants import KeyGrant, KeyLimits
from core.errors import Conflict, Forbidden, NotFound
from core.struct_types import view_of

_SHOWN_ONCE = "Store this key now. It is shown only once."
_NOT_KEPT = (
    "This is a replay without the secret, which was only in the first response. If you lost it, rotate this key."
)
_OVERLAPS: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
_ENDED_PER_ROUND: Final = 1_000


def mint(
    session: Session,
    pepper: bytes,
    *,
    tenant_id: str,
    new: NewApiKey,
    scopes: Sequence[str],
    actor: str,
    live_max: int,
) -> ApiKeyCreated:
    """Create a key of an existing tenant. Gateways accept it once it is published. Raises NotFound without the tenant,
    and Forbidden where it has ``live_max`` keys that are not revoked.
    """
    tenants.lock(session, tenant_id)  # so that no two requests create the last key
    mine = select(func.count()).select_from(ApiKey).where(ApiKey.tenant_id == tenant_id)
    if session.exec(mine.where(is_usable(clock.now()))).one() >= live_max:
        raise Forbidden(
            f"api_keys: a tenant may have at most {live_max} that are not revoked. Revoke one that is no longer used.",
            code="api_key_quota_exceeded",
        )
    secret = mint_key("live")
    row = ApiKey(
        tenant_id=tenant_id,
        name=new.name,
        key_hash=hash_key(secret, pepper),
        redacted=redact(secret),
        scopes=sorted(set(scopes)),
        limits=_set(new.limits) or None,
        models=None if new.models is None else list(new.models),
        expires_at=None if new.expires_in_days is None else clock.now() + timedelta(days=new.expires_in_days),
    )
    session.add(row)
    publish_change(session, "keys", row.key_hash)
    audit.record(
        session,
        actor=actor,
        action="api_key.created",
        target=row.id,
        tenant_id=tenant_id,
        details={
            "name": row.name,
            "scopes": row.scopes,
            "limits": row.limits,
            "models": row.models,
            "expires_at": row.expires_at and row.expires_at.isoformat(),
        },
    )
    return view_of(row, ApiKeyCreated, key=secret, note=_SHOWN_ONCE)


def rotate(session: Session, pepper: bytes, principal: Principal, key_id: str, overlap: Overlap) -> ApiKeyCreated:
    """Give a key of the caller's tenant a new secret. The one before it stays valid for ``overlap``, and one before
    that ends now. Raises NotFound, Conflict for a key that has ended, and Forbidden as ``require_grantable``.
    """
    row = _find(session, tenant_id=principal.own_tenant_id, key_id=key_id, lock=True)
    now = clock.now()
    if row.revoked_at is not None or _has_passed(row.expires_at, now):
        raise Conflict("This key was revoked or has expired. Create another key.", code="api_key_ended")
    require_grantable(principal, row.scopes)
    secret = mint_key("live")
    _publish(session, row)
    row.previous_hash, row.previous_ends_at = None, None
    if overlap != "none":
        row.previous_hash, row.previous_ends_at = row.key_hash, now + _OVERLAPS[overlap]
    row.key_hash, row.redacted = hash_key(secret, pepper), redact(secret)
    publish_change(session, "keys", row.key_hash)
    audit.record(
        session,
        actor=principal.key_id,
        action="api_key.rotated",
        target=row.id,
        tenant_id=row.tenant_id,
        details={"overlap": overlap},
    )
    return view_of(row, ApiKeyCreated, key=secret, note=_SHOWN_ONCE)


def require_grantable(principal: Principal, scopes: Collection[str]) -> None:
    """Refuse a caller who would get a secret with more rights than its own. Raises Forbidden."""
    if lacking := sorted(set(scopes) - principal.scopes):
        raise Forbidden(
            f"scopes: the calling key lacks {', '.join(lacking)} and cannot grant it.", code="scope_missing"
        )
    if principal.limited and "inference" in scopes:
        raise Forbidden(
            "scopes: a key with its own limits or models cannot get a key for inference. Leave that scope out.",
            code="key_limited",
        )


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
    """Revoke a key of the tenant permanently, with both of its secrets while it is rotated. Idempotent. Gateways refuse
    the key once the change is published.
    """
    row = _find(session, tenant_id=tenant_id, key_id=key_id, lock=True)
    if row.revoked_at is not None:
        return
    row.revoked_at = clock.now()
    _publish(session, row)
    audit.record(session, actor=actor, action="api_key.revoked", target=row.id, tenant_id=tenant_id)


def end_expired(session: Session) -> None:
    """Revoke keys that have expired, and remove secrets whose overlap is over: gateways refuse them already, and need
    not keep them. At most 1,000 of each.
    """
    now = clock.now()
    expired = select(ApiKey).where(col(ApiKey.revoked_at).is_(None), col(ApiKey.expires_at) <= now)
    for row in session.exec(expired.limit(_ENDED_PER_ROUND).with_for_update(skip_locked=True)):
        row.revoked_at = row.expires_at
        publish_bulk(session, "keys", _hashes(row))
    rotated = select(ApiKey).where(col(ApiKey.previous_ends_at) <= now)
    for row in session.exec(rotated.limit(_ENDED_PER_ROUND).with_for_update(skip_locked=True)):
        assert row.previous_hash is not None, "it has an end"
        publish_bulk(session, "keys", [row.previous_hash])
        row.previous_hash, row.previous_ends_at = None, None


def grant(session: Session, key_hash: str) -> KeyGrant | None:
    """The published form of the key with this HMAC, which may be that before its rotation. None for a revoked, unknown
    or admin key. An expired one is published until the worker revokes it, so that gateways can name the reason.
    """
    row = session.exec(select(ApiKey).where(_has_hash(key_hash))).first()
    return None if row is None or row.tenant_id is None or row.revoked_at is not None else _grant(row, key_hash)


def all_grants(session: Session) -> Iterator[tuple[str, KeyGrant]]:
    """The published form of every tenant key that is not revoked, by its HMACs."""
    live = select(ApiKey).where(col(ApiKey.revoked_at).is_(None), col(ApiKey.tenant_id).is_not(None))
    for row in session.exec(live.execution_options(yield_per=1000)):
        for key_hash in _hashes(row):
            yield key_hash, _grant(row, key_hash)


def find_principal(session: Session, key_hash: str) -> Principal | None:
    """The owner of a usable key, by the key's HMAC, for ``auth``."""
    now = clock.now()
    row = session.exec(select(ApiKey).where(_has_hash(key_hash), is_usable(now))).first()
    if row is None or (row.key_hash != key_hash and _has_passed(row.previous_ends_at, now)):
        return None
    return Principal(
        key_id=row.id,
        tenant_id=row.tenant_id,
        scopes=frozenset(row.scopes),
        tenant_status=tenants.status(session, row.tenant_id) if row.tenant_id else "active",
        limited=row.limits is not None or row.models is not None,
    )


def _find(session: Session, *, tenant_id: str, key_id: str, lock: bool = False) -> ApiKey:
    mine = select(ApiKey).where(ApiKey.id == key_id, ApiKey.tenant_id == tenant_id)
    row = session.exec(mine.with_for_update() if lock else mine).first() if key_id.isascii() else None
    if row is None:
        raise NotFound("API key not found.", code="api_key_not_found")
    return row


def _grant(row: ApiKey, key_hash: str) -> KeyGrant:
    assert row.tenant_id is not None, "admin keys are not published"
    ends = [each for each in (row.expires_at, row.previous_ends_at if key_hash == row.previous_hash else None) if each]
    return KeyGrant(
        key_id=row.id,
        tenant_id=row.tenant_id,
        scopes=tuple(row.scopes),
        limits=_limits(row),
        models=None if row.models is None else tuple(row.models),
        expires_at_ms=clock.to_ms(min(ends)) if ends else None,
    )


def _has_hash(key_hash: str) -> sa.ColumnElement[bool]:
    return (col(ApiKey.key_hash) == key_hash) | (col(ApiKey.previous_hash) == key_hash)


def _hashes(row: ApiKey) -> list[str]:
    return [row.key_hash] if row.previous_hash is None else [row.key_hash, row.previous_hash]


def _publish(session: Session, row: ApiKey) -> None:
    for key_hash in _hashes(row):
        publish_change(session, "keys", key_hash)


def _has_passed(instant: datetime | None, now: datetime) -> bool:
    return instant is not None and instant <= now


def _set(limits: KeyLimitsBody | None) -> dict[str, object]:
    """The limits that are set."""
    named = {} if limits is None else msgspec.structs.asdict(limits)
    return {name: limit for name, limit in named.items() if limit is not None}


def _limits(row: ApiKey) -> KeyLimits | None:
    return None if row.limits is None else msgspec.convert(row.limits, KeyLimits)
