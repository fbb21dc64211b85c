"""Which tenants' rows the transactions of the web process see: those of one tenant, of every tenant, or of none.

Each transaction begins with a setting, which Postgres compares with every row (``row_policies``). A call of the API
sees none until its guard has found the caller. Code that acts before that, or for no caller, says ``every_tenant``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from psycopg import sql
from sqlalchemy import Connection, Engine, event

from control_plane.row_policies import EVERY_TENANT, SETTING
from core import db
from core.settings import PostgresSettings

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send  # commands need no web framework


class _Seen:
    """What a call sees. Its guard runs in a thread with a copy of the context, so it changes this object instead of the
    variable.
    """

    def __init__(self, tenant_id: str | None = None) -> None:
        self.tenant_id = tenant_id


_seen: ContextVar[_Seen | None] = ContextVar("tenant_scope", default=None)


class TenantScopes:
    """ASGI middleware: each call of the API has a scope of its own, also one that the console makes within a page."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        with _scope(_Seen()):
            await self._app(scope, receive, send)


def connect(settings: PostgresSettings) -> Engine:
    """``db.connect`` for the web process's role: each transaction sees what the scope of its call says."""
    engine = db.connect(settings)
    event.listen(engine, "begin", _begin)
    return engine


def show_rows_of(tenant_id: str | None) -> None:
    """From now on this call sees the rows of its caller's tenant; with None, an admin's, those of every tenant."""
    seen = _seen.get()
    assert seen is not None, "TenantScopes wraps every call"
    seen.tenant_id = EVERY_TENANT if tenant_id is None else tenant_id


@contextmanager
def every_tenant() -> Iterator[None]:
    """Transactions that begin within the block see the rows of every tenant."""
    with _scope(_Seen(EVERY_TENANT)):
        yield


@contextmanager
def _scope(seen: _Seen) -> Iterator[None]:
    token = _seen.set(seen)
    try:
        yield
    finally:
        _seen.reset(token)


def _begin(connection: Connection) -> None:
    """A SET and no SELECT: after a query, a transaction could not choose its isolation level any more. A connection
    that streams would declare a cursor for it.
    """
    seen = _seen.get()
    if seen is not None and seen.tenant_id is not None:
        statement = f"SET LOCAL {SETTING} = {sql.quote(seen.tenant_id)}"
        connection.exec_driver_sql(statement, execution_options={"stream_results": False, "yield_per": None})
