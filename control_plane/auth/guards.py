"""Which keys may use a route. Every route carries one of these two guards; only health and schema are open."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from control_plane.auth.authenticate import Authenticator, Principal
from core.errors import Forbidden


def admin_key(authenticator: Authenticator) -> Guard:
    """Only an admin's key."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        principal = _authenticate(connection, authenticator)
        if principal.tenant_id is not None:
            raise Forbidden("This is an admin route; use an admin key (tnr_admin_…).", code="admin_key_required")

    return guard


def tenant_key(authenticator: Authenticator) -> Guard:
    """Only a tenant's key, with the scope in the route's ``opt["scope"]``, of a tenant that is not suspended unless the
    route's ``opt["while_suspended"]`` says that it may look: at itself, its usage and its invoices.
    """

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        principal = _authenticate(connection, authenticator)
        if principal.tenant_id is None:
            raise Forbidden("This is a tenant's route; use a tenant key (tnr_live_…).", code="tenant_key_required")
        if principal.tenant_status == "suspended" and not handler.opt.get("while_suspended", False):
            raise Forbidden("This tenant is suspended; ask the platform's operator.", code="tenant_suspended")
        scope = handler.opt["scope"]
        if scope is not None and scope not in principal.scopes:
            raise Forbidden(f"This key lacks the scope {scope!r}; use one that has it.", code="scope_missing")

    return guard


def _authenticate(connection: ASGIConnection[Any, Any, Any, Any], authenticator: Authenticator) -> Principal:
    principal = authenticator.authenticate(connection.headers.get("authorization"))
    connection.scope["auth"] = principal
    return principal
