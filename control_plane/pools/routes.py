"""Whom pools serve, as gateways see it. A pool that serves all is not published."""

from collections.abc import Iterator

from sqlmodel import Session, select

from control_plane.pools.models import PoolRow
from core.contracts.routes import PoolRoute
from core.struct_types import view_of


def route(session: Session, name: str) -> PoolRoute | None:
    """The route of a pool; None for one that serves all, and for none."""
    pool = session.get(PoolRow, name)
    return None if pool is None else _route(pool)


def all_routes(session: Session) -> Iterator[tuple[str, PoolRoute]]:
    """Every pool that does not serve all, by name."""
    for pool in session.exec(select(PoolRow).order_by(PoolRow.name)):
        if (found := _route(pool)) is not None:
            yield pool.name, found


def _route(pool: PoolRow) -> PoolRoute | None:
    found = view_of(pool, PoolRoute)
    return None if found == PoolRoute(base_model=pool.base_model) else found
