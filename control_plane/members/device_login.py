"""Sign-in of a command (RFC 8628, the part that it needs): the command shows a code, a person types and confirms it in
the console, and the command's next poll gets an API key.

Postgres has only hashes of both codes, and the key is made in the transaction of the poll that returns it. Fails
closed: a poll makes no key for a person who has lost the role.
"""

import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine, delete
from sqlmodel import Session, col, func, or_, select
from sqlmodel.sql.expression import SelectOfScalar

from control_plane import tenant_scope
from control_plane.api_keys import service as api_keys
from control_plane.api_keys.schemas import NewApiKey
from control_plane.auth.authenticate import Principal
from control_plane.members import sign_in
from control_plane.members.models import DeviceAuthorization, Membership
from control_plane.members.roles import SCOPES
from control_plane.members.schemas import DeviceCodes, DeviceKey, DeviceLoginView
from control_plane.settings import ConsoleSettings
from control_plane.tenants import service as tenants
from core import clock
from core.api_keys import ALL_SCOPES, hash_key
from core.db import unit_of_work
from core.errors import NotFound, TooManyRequests
from core.struct_types import view_of

_VALID: Final = timedelta(minutes=10)
_POLL_S: Final = 2
_KEY_DAYS: Final = 90
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"  # RFC 8628, section 6.1: without vowels they spell no word
_LENGTH: Final = 8
_TOKEN_BYTES: Final = 32


def ask(
    session: Session, pepper: bytes, *, label: str, address: str, console_url: str, rules: ConsoleSettings
) -> DeviceCodes:
    """New codes for a command at ``address``. Raises TooManyRequests while too many are kept, used up or not."""
    of_address = func.count().filter(col(DeviceAuthorization.address) == address)
    kept, kept_of_address = session.exec(select(func.count(), of_address).select_from(DeviceAuthorization)).one()
    per_address = rules.login_codes_per_address_max
    if kept >= rules.login_codes_max or (per_address is not None and kept_of_address >= per_address):
        raise TooManyRequests(
            "Too many commands wait to be signed in. Try again in some minutes.",
            code="too_many_logins",
            retry_after_s=60,
        )
    device_code, code = secrets.token_urlsafe(_TOKEN_BYTES), "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
    row = DeviceAuthorization(
        device_hash=hash_key(device_code, pepper),
        code_hash=hash_key(code, pepper),
        label=label,
        address=address,
        expires_at=clock.now() + _VALID,
    )
    session.add(row)
    return view_of(
        row, DeviceCodes, device_code=device_code, code=_shown(code), url=f"{console_url}/login-code", poll_s=_POLL_S
    )


def claim(engine: Engine, pepper: bytes, typed: str, principal: Principal, rules: ConsoleSettings) -> DeviceLoginView:
    """The command of a typed code, which from now on is this person's to confirm. A wrong code counts as a failed
    sign-in. Raises NotFound and TooManyRequests.
    """
    with tenant_scope.every_tenant(), unit_of_work(engine) as session:
        sign_in.check_tries(session, [principal.key_id], rules)
        mine_or_free = or_(
            col(DeviceAuthorization.user_id).is_(None), col(DeviceAuthorization.user_id) == principal.key_id
        )
        row = session.exec(_waiting(pepper, typed).where(mine_or_free).with_for_update()).first()
        if row is not None:
            row.tenant_id, row.user_id = principal.own_tenant_id, principal.key_id
            return _view(row, typed, principal)
        sign_in.count_failure(session, [principal.key_id], rules)
    raise _unknown()


def get(session: Session, pepper: bytes, code: str, principal: Principal) -> DeviceLoginView:
    """A command whose code this person typed for the tenant. Raises NotFound."""
    return _view(_mine(session, pepper, code, principal), code, principal)


def confirm(session: Session, pepper: bytes, code: str, principal: Principal) -> None:
    """Let the command have a key with its next poll. Idempotent. Raises NotFound."""
    row = _mine(session, pepper, code, principal)
    row.confirmed_at = row.confirmed_at or clock.now()


def poll(session: Session, pepper: bytes, device_code: str, rules: ConsoleSettings, *, keys_max: int) -> DeviceKey:
    """The key of a command whose code was confirmed, which uses the code up. Its scopes are those of the person's role
    now. Raises NotFound, TooManyRequests for a poll that comes too early, and Forbidden for a key too many.
    """
    now = clock.now()
    query = select(DeviceAuthorization).where(
        DeviceAuthorization.device_hash == hash_key(device_code, pepper), col(DeviceAuthorization.expires_at) > now
    )
    row = session.exec(query.with_for_update()).first()
    if row is None:
        raise _unknown()
    if row.polled_at is not None and now - row.polled_at < timedelta(seconds=_POLL_S):
        raise TooManyRequests(f"Poll every {_POLL_S} seconds.", code="polled_too_early", retry_after_s=_POLL_S)
    row.polled_at = now
    if row.confirmed_at is None:
        return DeviceKey()
    assert row.tenant_id is not None, "a code is typed before it is confirmed"
    member = session.get(Membership, (row.tenant_id, row.user_id))
    if member is None or "logins:write" not in SCOPES[member.role]:
        raise _unknown()
    key = api_keys.mint(
        session,
        pepper,
        tenant_id=row.tenant_id,
        new=NewApiKey(name=f"tenora login on {row.label}", expires_in_days=_KEY_DAYS),
        scopes=_of_keys(SCOPES[member.role]),
        live_max=keys_max,
        actor=member.user_id,
    )
    session.delete(row)
    return DeviceKey(key=key, tenant=tenants.get(session, row.tenant_id).name, gateway_url=rules.gateway_address)


def remove_expired(session: Session) -> None:
    """Delete codes that are too old to be confirmed or polled."""
    session.execute(delete(DeviceAuthorization).where(col(DeviceAuthorization.expires_at) <= clock.now()))


def _waiting(pepper: bytes, typed: str) -> SelectOfScalar[DeviceAuthorization]:
    code = "".join(each for each in typed.upper() if each in _LETTERS)
    return select(DeviceAuthorization).where(
        DeviceAuthorization.code_hash == hash_key(code, pepper), col(DeviceAuthorization.expires_at) > clock.now()
    )


def _mine(session: Session, pepper: bytes, code: str, principal: Principal) -> DeviceAuthorization:
    mine = _waiting(pepper, code).where(
        DeviceAuthorization.user_id == principal.key_id, DeviceAuthorization.tenant_id == principal.own_tenant_id
    )
    row = session.exec(mine.with_for_update()).first()
    if row is None:
        raise _unknown()
    return row


def _view(row: DeviceAuthorization, code: str, principal: Principal) -> DeviceLoginView:
    return view_of(row, DeviceLoginView, id=_shown(code), scopes=_of_keys(principal.scopes))


def _of_keys(scopes: Iterable[str]) -> list[str]:
    """Those of the scopes that a key can have."""
    return sorted(set(scopes) & set(ALL_SCOPES))


def _shown(code: str) -> str:
    letters = "".join(each for each in code.upper() if each in _LETTERS)
    return f"{letters[:4]}-{letters[4:]}"


def _unknown() -> NotFound:
    return NotFound(
        "This code is unknown, was used or is older than ten minutes. Run 'tenora login' again.",
        code="login_code_not_found",
    )
