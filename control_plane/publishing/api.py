"""Whether every live gateway acts by a change, for callers whose answer said that one did not yet."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import Method
from redis import Redis
from sqlalchemy import Engine

from control_plane.publishing.gateway_ack import AckScan
from core import fields


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A change. With ``acknowledged``, every live gateway acts by it; ``gateways`` counts those that do."""

    acknowledged: Annotated[bool, fields.ACKNOWLEDGED]
    gateways: Annotated[int, fields.GATEWAYS]


def _operation_id(_handler: HTTPRouteHandler, _method: Method, path: Sequence[object]) -> str:
    """Administrators and tenants have the route under two paths, and ids are unique."""
    return "get_change_as_admin" if "admin" in path else "get_change"


class Changes(Controller):
    """Changes and their acknowledgement by gateways."""

    path = "/changes"
    tags = ("changes",)
    opt = {"scope": None, "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get("/{change_id:int}", sync_to_thread=True, operation_id=_operation_id)
    def get_change(
        self, change_id: FromPath[int], engine: NamedDependency[Engine], redis: NamedDependency[Redis]
    ) -> ChangeView:
        """Get whether every live gateway acts by a change. An unknown id counts as a change of long ago."""
        scan = AckScan(engine, redis, [change_id])
        acknowledged = scan.run_once()
        return ChangeView(acknowledged=acknowledged, gateways=scan.having)
