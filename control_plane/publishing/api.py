"""Whether every live gateway acts by a change, for callers whose answer said that one did not yet."""

from typing import Annotated

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from redis import Redis
from sqlalchemy import Engine

from control_plane.publishing.gateway_ack import AckScan
from core import fields


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A change. With ``acknowledged``, every live gateway acts by it; ``gateways`` counts those that do."""

    acknowledged: Annotated[bool, fields.ACKNOWLEDGED]
    gateways: Annotated[int, fields.GATEWAYS]


class Changes(Controller):
    """Changes and their acknowledgement by gateways."""

    path = "/changes"
    tags = ("changes",)
    opt = {"scope": None, "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get("/{change_id:int}", sync_to_thread=True)
    def get_change(
        self, change_id: FromPath[int], engine: NamedDependency[Engine], redis: NamedDependency[Redis]
    ) -> ChangeView:
        """Get whether every live gateway acts by a change. An unknown id counts as a change of long ago."""
        scan = AckScan(engine, redis, [change_id])
        acknowledged = scan.run_once()
        return ChangeView(acknowledged=acknowledged, gateways=scan.having)
