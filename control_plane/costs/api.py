"""Admin routes of unit economics: rates, outside prices, cost functions, and the report as JSON or as a FOCUS file."""

from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from litestar.response import Stream
from sqlalchemy import Engine
from sqlmodel import Session

from billing.costs import price_book
from billing.costs.break_even import DatedOutsidePrice
from billing.costs.rates import DatedRate
from billing.costs.report import CostGrouping
from billing.costs.settings import CostSettings
from control_plane.audit.service import audited
from control_plane.auth.authenticate import Principal
from control_plane.costs import service
from control_plane.costs.schemas import CostFunctionView, CostReportView, NewOutsidePrice, NewReplicaRate
from control_plane.idempotency.service import IdempotentRequest
from control_plane.paging import Page, PageLimit
from control_plane.pools import service as pools
from core.db import unit_of_work

Start = Annotated[
    datetime | None,
    QueryParameter(description="Start, inclusive; a whole UTC hour. Default: the first of the month of `end`."),
]
End = Annotated[
    datetime | None, QueryParameter(description="End, exclusive; a whole UTC hour. Default: the end of this hour.")
]


class AdminCosts(Controller):
    """What replicas cost, whose cost it is, and what is earned with it."""

    path = "/costs"
    tags = ("admin: costs",)

    @get(sync_to_thread=True)
    def get_cost_report(
        self,
        reports: NamedDependency[Engine],
        cost_settings: NamedDependency[CostSettings],
        start: Start = None,
        end: End = None,
        group_by: Annotated[CostGrouping, QueryParameter(description="Rows of the report.")] = "tenant",
        include_open_hours: Annotated[
            bool, QueryParameter(description="Also compute the hours whose cost is not shared out for good yet.")
        ] = False,
    ) -> CostReportView:
        """Get revenue, cost and margin, with break-even and savings by base model."""
        with unit_of_work(reports) as session:
            return service.read_report(
                session,
                cost_settings,
                start=start,
                end=end,
                group_by=group_by,
                include_open_hours=include_open_hours,
            )

    @get("/focus.csv", sync_to_thread=True, media_type="text/csv")
    def get_focus_file(self, reports: NamedDependency[Engine], start: Start = None, end: End = None) -> Stream:
        """Get the costs as CSV in the FOCUS format, one line per hour, replica, owner and kind."""
        lines = service.focus_lines(reports, start=start, end=end)
        return Stream(
            lines,
            media_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="costs-focus.csv"'},
        )

    @get("/functions", sync_to_thread=True)
    def list_cost_functions(self, engine: NamedDependency[Engine], limit: PageLimit = 50) -> Page[CostFunctionView]:
        """List the newest fitted cost functions, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=service.list_functions(session, limit=limit))

    @get("/rates", sync_to_thread=True)
    def list_replica_rates(self, engine: NamedDependency[Engine]) -> Page[DatedRate]:
        """List what replicas cost, by base model, rank class, pool and time, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=price_book.list_rates(session))

    @post("/rates", sync_to_thread=True)
    def add_replica_rate(
        self,
        data: JSONBody[NewReplicaRate],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DatedRate]:
        """Add what one replica of a pool, or of a base model and rank class, costs from an instant on."""

        def add(session: Session) -> DatedRate:
            if data.pool:
                pools.require(session, data.pool, base_model=data.base_model, rank_max=data.rank_max)
            added = price_book.add_rate(session, msgspec.convert(data, DatedRate, from_attributes=True))
            target = f"{data.base_model}/{data.rank_max}" + (f"/{data.pool}" if data.pool else "")
            details = {"effective_from": data.effective_from, "nanos_per_hour": data.nanos_per_hour}
            audited(session, principal, "replica_rate.added", target, details=details)
            return added

        return idempotent.run(add)

    @get("/outside-prices", sync_to_thread=True)
    def list_outside_prices(self, engine: NamedDependency[Engine]) -> Page[DatedOutsidePrice]:
        """List what other providers charge, by base model, on one page."""
        with unit_of_work(engine) as session:
            return Page(data=price_book.list_outside_prices(session))

    @post("/outside-prices", sync_to_thread=True)
    def add_outside_price(
        self,
        data: JSONBody[NewOutsidePrice],
        idempotent: NamedDependency[IdempotentRequest],
        principal: NamedDependency[Principal],
    ) -> Response[DatedOutsidePrice]:
        """Add what a provider charged for a million tokens of a model on a day."""

        def add(session: Session) -> DatedOutsidePrice:
            added = price_book.add_outside_price(
                session, msgspec.convert(data, DatedOutsidePrice, from_attributes=True)
            )
            details = {"provider": data.provider, "as_of": data.as_of, "currency": data.currency}
            audited(session, principal, "outside_price.added", data.base_model, details=details)
            return added

        return idempotent.run(add)
