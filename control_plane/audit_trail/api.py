"""Routes over the audit trail: an admin's over all of it, a tenant's over the actions about itself."""

from datetime import datetime
from typing import Annotated

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from sqlalchemy import Engine

from control_plane.audit_trail import service
from control_plane.audit_trail.schemas import AuditEventView
from control_plane.audit_trail.service import AuditFilter
from control_plane.auth.authenticate import Principal
from control_plane.paging import Page, PageCursor, PageLimit
from core.db import unit_of_work

_Actor = Annotated[
    str | None, QueryParameter(max_length=200, description="Only of this actor: the id of a key, or a process.")
]
_Action = Annotated[
    str | None,
    QueryParameter(max_length=200, description="Only this action, such as `api_key.revoked`, or all of `api_key`."),
]
_Target = Annotated[str | None, QueryParameter(max_length=200, description="Only actions on the object with this id.")]
_Start = Annotated[datetime | None, QueryParameter(description="Start, inclusive, with an offset.")]
_End = Annotated[datetime | None, QueryParameter(description="End, exclusive, with an offset.")]


class AdminAuditEvents(Controller):
    """Who changed what, and when."""

    path = "/audit-events"
    tags = ("admin: audit",)

    @get(sync_to_thread=True)
    def list_audit_events(  # noqa: PLR0913, PLR0917 - the query parameters
        self,
        engine: NamedDependency[Engine],
        actor: _Actor = None,
        action: _Action = None,
        target: _Target = None,
        tenant_id: Annotated[
            str | None, QueryParameter(max_length=200, description="Only actions about this tenant.")
        ] = None,
        start: _Start = None,
        end: _End = None,
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[AuditEventView]:
        """List the audit trail, newest first. It holds every change since the oldest row that was not archived."""
        wanted = AuditFilter(actor=actor, action=action, target=target, start=start, end=end)
        with unit_of_work(engine) as session:
            return service.list_all(session, wanted, tenant_id=tenant_id, cursor=cursor, limit=limit)


class OwnAuditEvents(Controller):
    """What was done to the calling tenant, by its own keys, by the platform and by admins."""

    path = "/audit-events"
    tags = ("tenant",)
    opt = {"scope": "audit:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def list_own_audit_events(  # noqa: PLR0913, PLR0917 - the query parameters
        self,
        engine: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        actor: _Actor = None,
        action: _Action = None,
        target: _Target = None,
        start: _Start = None,
        end: _End = None,
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[AuditEventView]:
        """List the audit trail of the tenant, newest first. What an admin did has the actor `admin` and no details."""
        wanted = AuditFilter(actor=actor, action=action, target=target, start=start, end=end)
        with unit_of_work(engine) as session:
            return service.list_own(session, wanted, tenant_id=principal.own_tenant_id, cursor=cursor, limit=limit)
