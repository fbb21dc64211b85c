"""A tenant's routes over its usage and costs where OpenAI's clients look for them, below ``/v1``."""

from datetime import date
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Stream
from sqlalchemy import Engine

from control_plane.auth.authenticate import Principal
from control_plane.settings import WebSettings
from control_plane.usage import organization, team_usage
from control_plane.usage.organization import ReportRequest
from control_plane.usage.organization_schemas import (
    BucketPage,
    CompletionsCosts,
    CompletionsUsage,
    CostItemGrouping,
    TeamUsageDay,
    UsageGrouping,
)
from core import clock
from core.periods import Bucket

_JSON: Final = "application/json"
_CSV: Final = "text/csv"
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")

Ids = list[Annotated[str, msgspec.Meta(max_length=200)]] | None
StartTime = Annotated[int, QueryParameter(description="Start in Unix seconds, inclusive.")]
EndTime = Annotated[
    int | None, QueryParameter(description="End in Unix seconds, exclusive. Default: the end of this hour.")
]
Width = Annotated[Bucket, QueryParameter(description="Length of one bucket, in UTC.")]
Limit = Annotated[
    int | None,
    QueryParameter(
        description="Buckets of a page. By default and at most: 60 and 1440 of a minute, "
        "24 and 168 of an hour, 7 and 31 of a day."
    ),
]
CostLimit = Annotated[
    int | None,
    QueryParameter(
        description="Buckets of a page. By default and at most: 60 and 1440 of a minute, "
        "24 and 168 of an hour, 7 and 180 of a day."
    ),
]
PagePosition = Annotated[
    str | None, QueryParameter(max_length=2000, description="The `next_page` of the previous page.")
]
Format = Annotated[
    Literal["json", "csv"] | None,
    QueryParameter(description="csv gives the whole range as one file. Default: what the header Accept asks for."),
]
ProjectIds = Annotated[Ids, QueryParameter(max_items=100, description='Only these adapters; "" is the base model.')]
KeyIds = Annotated[Ids, QueryParameter(max_items=100, description="Only these API keys.")]


class OrganizationUsage(Controller):
    """Usage and costs of the calling tenant in OpenAI's shapes. A project is an adapter, a model a base model."""

    path = "/"
    tags = ("usage",)
    opt = {"scope": "usage:read", "while_suspended": True}  # noqa: RUF012 - Litestar's own attribute, copied by it

    @get("/usage", sync_to_thread=True)
    def get_team_usage(
        self,
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        team_id: Annotated[
            str | None, QueryParameter(max_length=200, description="Id of the tenant. Default: the caller's.")
        ] = None,
        date: Annotated[date | None, QueryParameter(description="A UTC day, YYYY-MM-DD. Default: today.")] = None,
        page: PagePosition = None,
    ) -> TeamUsageDay:
        """Get the usage of one day by model and adapter, with what the prefix cache saved."""
        return team_usage.read_day(
            reports, tenant_id=principal.own_tenant_id, team_id=team_id, day=date or clock.now().date(), page=page
        )

    @get("/organization/usage/completions", sync_to_thread=True)
    def get_completions_usage(  # noqa: PLR0913, PLR0917 - the query parameters
        self,
        request: Request[Any, Any, Any],
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        web: NamedDependency[WebSettings],
        start_time: StartTime,
        end_time: EndTime = None,
        bucket_width: Width = "1d",
        group_by: Annotated[
            list[UsageGrouping] | None, QueryParameter(max_items=4, description="Split each bucket by these fields.")
        ] = None,
        models: Annotated[Ids, QueryParameter(max_items=100, description="Only these base models.")] = None,
        project_ids: ProjectIds = None,
        api_key_ids: KeyIds = None,
        limit: Limit = None,
        page: PagePosition = None,
        format: Format = None,  # noqa: A002 - the parameter's name
    ) -> Response[BucketPage[CompletionsUsage]]:
        """Get tokens, requests and amounts by time, as OpenAI's organization/usage/completions."""
        asked = ReportRequest(
            kind="usage",
            tenant_id=principal.own_tenant_id,
            start_time=start_time,
            end_time=end_time,
            width=bucket_width,
            group_by=tuple(dict.fromkeys(group_by or ())),
            models=_filter(models),
            project_ids=_filter(project_ids),
            api_key_ids=_filter(api_key_ids),
        )
        if _wants_csv(request, format):
            return _file(organization.usage_csv(reports, asked, days_max=web.usage_days_max), "usage.csv")
        return _json(organization.usage_page(reports, asked, limit=limit, page=page))

    @get("/organization/costs", sync_to_thread=True)
    def get_costs(  # noqa: PLR0913, PLR0917 - the query parameters
        self,
        request: Request[Any, Any, Any],
        reports: NamedDependency[Engine],
        principal: NamedDependency[Principal],
        web: NamedDependency[WebSettings],
        start_time: StartTime,
        end_time: EndTime = None,
        bucket_width: Width = "1d",
        group_by: Annotated[
            list[CostItemGrouping] | None, QueryParameter(max_items=3, description="Split each bucket by these fields.")
        ] = None,
        line_items: Annotated[
            Ids, QueryParameter(max_items=100, description="Only these line items; needs group_by=line_item.")
        ] = None,
        project_ids: ProjectIds = None,
        api_key_ids: KeyIds = None,
        limit: CostLimit = None,
        page: PagePosition = None,
        format: Format = None,  # noqa: A002 - the parameter's name
    ) -> Response[BucketPage[CompletionsCosts]]:
        """Get what usage costs by time, as OpenAI's organization/costs, before tiers, discounts, credits and tax."""
        asked = ReportRequest(
            kind="costs",
            tenant_id=principal.own_tenant_id,
            start_time=start_time,
            end_time=end_time,
            width=bucket_width,
            group_by=tuple(dict.fromkeys(group_by or ())),
            line_items=_filter(line_items),
            project_ids=_filter(project_ids),
            api_key_ids=_filter(api_key_ids),
        )
        if _wants_csv(request, format):
            return _file(organization.cost_csv(reports, asked, days_max=web.usage_days_max), "costs.csv")
        return _json(organization.cost_page(reports, asked, limit=limit, page=page))


def _filter(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(dict.fromkeys(values))


def _wants_csv(request: Request[Any, Any, Any], asked: str | None) -> bool:
    return asked == "csv" if asked else request.accept.best_match([_JSON, _CSV], default=_JSON) == _CSV


def _json(page: object) -> Response[Any]:
    """The page with amounts as exact numbers, which Litestar would write as text."""
    return Response(_ENCODER.encode(page), media_type=_JSON, headers={"Vary": "Accept"})


def _file(lines: Any, name: str) -> Response[Any]:
    return Stream(
        lines,
        media_type=_CSV,
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Vary": "Accept"},
    )
