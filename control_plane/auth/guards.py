"""The guards of routes: which keys may use a route. Every route has one of the two; only health and schema are open."""

from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from control_plane import tenant_scope
from control_plane.auth.authenticate import Authenticator, Principal
from core.errors import Forbidden

_READING: Final = frozenset({"GET", "HEAD"})


def admin_key(authenticator: Authenticator) -> Guard:
    """Admits only admin keys."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if _only_lists_methods(connection):
            return
        principal = _authenticate(connection, authenticator)
        if principal.tenant_id is not None:
            raise Forbidden("This is an admin route. Use an admin key (tnr_admin_…).", code="admin_key_required")

    return guard


def tenant_key(authenticator: Authenticator) -> Guard:
    """Admits only tenant keys with the scope in the route's ``opt["scope"]``. A suspended tenant is admitted only where
    ``opt["while_suspended"]`` is true: to read itself, its usage and its invoices.
    """

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        if _only_lists_methods(connection):
            return
        principal = _authenticate(connection, authenticator)
        if principal.tenant_id is None:
            raise Forbidden("This is a tenant route. Use a tenant key (tnr_live_…).", code="tenant_key_required")
        if principal.tenant_status == "suspended" and not handler.opt.get("while_suspended", False):
            raise Forbidden("This tenant is suspended. Contact the platform's operator.", code="tenant_suspended")
        scope = handler.opt["scope"]
        if scope is not None and scope not in principal.scopes:
            raise Forbidden(f"This key lacks the scope {scope!r}. Use a key that has it.", code="scope_missing")

    return guard


def _only_lists_methods(connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    """OPTIONS answers with the route's methods, which the open schema lists as well. Litestar adds its handler, which
    has no ``opt``.
    """
    return connection.scope.get("method") == "OPTIONS"


def _authenticate(connection: ASGIConnection[Any, Any, Any, Any], authenticator: Authenticator) -> Principal:
    """The caller: a person for whom the console calls within the process, or else the owner of the key."""
    state = connection.scope["state"]
    principal: Principal | None = state.get("principal")
    if principal is None:
        principal = authenticator.authenticate(*connection.headers.getall("authorization", []))
    if principal.read_only and connection.scope.get("method") not in _READING:
        raise Forbidden("You may read this and change nothing. Ask for another role.", code="read_only")
    connection.scope["auth"] = principal
    tenant_scope.show_rows_of(principal.tenant_id)
    state["slot"].authenticated(principal.tenant_id)
    return principal
