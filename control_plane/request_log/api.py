"""Routes over the request log: a tenant's over its own requests, and an admin's over those of a tenant."""

from datetime import datetime
from typing import Annotated

from litestar import Controller, delete, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from sqlalchemy import Engine

from adapters.object_store.s3 import Bucket
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.paging import Page, PageCursor, PageLimit
from control_plane.request_log import files
from control_plane.request_log.service import RequestFilter, RequestLogReader, RequestSort
from control_plane.tenants import service as tenants
from core.contracts.request_log import LoggedOutcome, LoggedRequest
from core.db import unit_of_work

_Start = Annotated[
    datetime | None, QueryParameter(description="Start, inclusive, with an offset. Default: one day before `end`.")
]
_End = Annotated[datetime | None, QueryParameter(description="End, exclusive, with an offset. Default: now.")]
_Model = Annotated[
    str | None,
    QueryParameter(
        pattern=r"^[A-Za-z0-9._:@/-]{1,128}(?!\n)$", description="Only requests that asked for exactly this model."
    ),
]
_Outcome = Annotated[LoggedOutcome | None, QueryParameter(description="Only requests that ended so.")]
_Code = Annotated[
    str | None,
    QueryParameter(pattern=r"^[a-z0-9_]{1,64}(?!\n)$", description="Only requests that got an error with this code."),
]
_WholeMsMin = Annotated[
    int | None,
    QueryParameter(ge=1, le=1_000_000_000_000, description="Only requests that took at least so many milliseconds."),
]
_Sort = Annotated[RequestSort, QueryParameter(description="Newest first, or slowest first.")]


class OwnRequests(Controller):
    """The requests of the calling tenant."""

    path = "/requests"
    tags = ("usage",)
    opt = {"scope": "usage:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get(sync_to_thread=True)
    def list_requests(  # noqa: PLR0913, PLR0917 - the query parameters
        self,
        request_log: NamedDependency[RequestLogReader],
        principal: NamedDependency[Principal],
        start: _Start = None,
        end: _End = None,
        model: _Model = None,
        outcome: _Outcome = None,
        code: _Code = None,
        whole_ms_min: _WholeMsMin = None,
        sort: _Sort = "newest",
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[LoggedRequest]:
        """List requests and refusals with what they took: the wait, the load of the adapter, the prefill, the answer.
        The log has a request some seconds after its end. It holds no text of prompts or answers.
        """
        wanted = RequestFilter(
            start=start, end=end, model=model, outcome=outcome, code=code, whole_ms_min=whole_ms_min, sort=sort
        )
        return request_log.page(principal.own_tenant_id, wanted, cursor=cursor, limit=limit)

    @get("/{request_id:str}", sync_to_thread=True)
    def get_request(
        self,
        request_id: FromPath[str],
        request_log: NamedDependency[RequestLogReader],
        principal: NamedDependency[Principal],
    ) -> LoggedRequest:
        """Get one request by the id that its answer carried in `x-request-id`."""
        return request_log.one(principal.own_tenant_id, request_id)


class TenantRequests(Controller):
    """The requests of one tenant, for an admin."""

    path = "/tenants/{tenant_id:str}/requests"
    tags = ("admin: tenants",)

    @get(sync_to_thread=True)
    def list_tenant_requests(  # noqa: PLR0913, PLR0917 - the query parameters
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        request_log: NamedDependency[RequestLogReader],
        start: _Start = None,
        end: _End = None,
        model: _Model = None,
        outcome: _Outcome = None,
        code: _Code = None,
        whole_ms_min: _WholeMsMin = None,
        sort: _Sort = "newest",
        limit: PageLimit = 50,
        cursor: PageCursor = None,
    ) -> Page[LoggedRequest]:
        """List a tenant's requests as the tenant sees them at `/api/v1/requests`."""
        _require(engine, tenant_id)
        wanted = RequestFilter(
            start=start, end=end, model=model, outcome=outcome, code=code, whole_ms_min=whole_ms_min, sort=sort
        )
        return request_log.page(tenant_id, wanted, cursor=cursor, limit=limit)

    @get("/{request_id:str}", sync_to_thread=True)
    def get_tenant_request(
        self,
        tenant_id: FromPath[str],
        request_id: FromPath[str],
        engine: NamedDependency[Engine],
        request_log: NamedDependency[RequestLogReader],
    ) -> LoggedRequest:
        """Get one request of a tenant."""
        _require(engine, tenant_id)
        return request_log.one(tenant_id, request_id)

    @delete(sync_to_thread=True)
    def erase_tenant_requests(
        self,
        tenant_id: FromPath[str],
        engine: NamedDependency[Engine],
        objects: NamedDependency[Bucket],
        principal: NamedDependency[Principal],
    ) -> None:
        """Have the worker remove every row that the request log has of the tenant now, within minutes. Usage records
        and invoices stay.
        """
        with unit_of_work(engine) as session:
            tenants.require(session, tenant_id)
            audited(session, principal, "request_log.erased", tenant_id, tenant_id=tenant_id)
        files.request_erasure(objects, tenant_id)


def _require(engine: Engine, tenant_id: str) -> None:
    with unit_of_work(engine) as session:
        tenants.require(session, tenant_id)
