"""Reads the audit trail: an admin all of it, a tenant the rows about itself."""

from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import and_, case, or_
from sqlalchemy.sql.elements import SQLCoreOperations
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from control_plane.api_keys.models import ApiKey
from control_plane.audit.models import AuditEvent
from control_plane.audit_trail.schemas import AuditEventView
from control_plane.auth.authenticate import ADMIN_PERSON
from control_plane.paging import Page, page_of
from core.errors import InvalidRequest
from core.periods import aware
from core.struct_types import view_of

ADMIN: Final = "admin"
"""What a tenant sees in place of an admin."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows. ``action`` is one such as ``tenant.changed``, or its part before the dot for all of that kind."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    start: datetime | None = None
    end: datetime | None = None


def list_all(
    session: Session, wanted: AuditFilter, *, tenant_id: str | None, cursor: str | None, limit: int
) -> Page[AuditEventView]:
    """Every row, or those about one tenant, newest first. Raises InvalidRequest for an impossible range."""
    rows = _rows(wanted, actor=col(AuditEvent.actor))
    if tenant_id is not None:
        rows = rows.where(AuditEvent.tenant_id == tenant_id)
    return page_of(session, rows, col(AuditEvent.id), partial(view_of, view=AuditEventView), cursor=cursor, limit=limit)


def list_own(
    session: Session, wanted: AuditFilter, *, tenant_id: str, cursor: str | None, limit: int
) -> Page[AuditEventView]:
    """The rows about a tenant as the tenant may see them, newest first. Raises InvalidRequest for an impossible range.

    An admin and what it wrote beside the change, such as a reason, stay hidden, also from the filter.
    """
    own = select(ApiKey.id).where(ApiKey.tenant_id == tenant_id)
    actor = col(AuditEvent.actor)
    by_admin = or_(
        actor.startswith(ADMIN_PERSON, autoescape=True),
        and_(actor.startswith("key_", autoescape=True), actor.not_in(own)),
    )
    rows = _rows(wanted, actor=case((by_admin, ADMIN), else_=actor))
    keys = set(session.exec(own))

    def view(row: AuditEvent) -> AuditEventView:
        shown = view_of(row, AuditEventView)
        if row.actor.startswith(ADMIN_PERSON) or (row.actor.startswith("key_") and row.actor not in keys):
            return msgspec.structs.replace(shown, actor=ADMIN, details={})
        return shown

    mine = rows.where(AuditEvent.tenant_id == tenant_id)
    return page_of(session, mine, col(AuditEvent.id), view, cursor=cursor, limit=limit)


def _rows(wanted: AuditFilter, *, actor: SQLCoreOperations[str]) -> SelectOfScalar[AuditEvent]:
    rows = select(AuditEvent)
    if wanted.actor is not None:
        rows = rows.where(actor == wanted.actor)
    if wanted.action is not None:
        kind = col(AuditEvent.action).startswith(f"{wanted.action}.", autoescape=True)
        rows = rows.where(or_(col(AuditEvent.action) == wanted.action, kind))
    if wanted.target is not None:
        rows = rows.where(AuditEvent.target == wanted.target)
    start = None if wanted.start is None else aware(wanted.start, "start")
    end = None if wanted.end is None else aware(wanted.end, "end")
    if start is not None:
        rows = rows.where(AuditEvent.created_at >= start)
    if end is not None:
        rows = rows.where(AuditEvent.created_at < end)
    if start is not None and end is not None and end <= start:
        raise InvalidRequest("end: must be later than start.", param="end")
    return rows
