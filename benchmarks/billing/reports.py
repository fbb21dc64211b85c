"""Times reports on a month and a what-if, as the control plane asks for them."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec
import sqlalchemy as sa

from benchmarks.billing.seed import PRICES, WIDE_RECORDS
from benchmarks.load import quantile
from billing.invoicing import what_if
from billing.prices import price_book
from billing.prices.card import PriceCard
from billing.usage import buckets
from control_plane.usage import organization
from control_plane.usage.organization import ReportRequest
from control_plane.usage.organization_schemas import UsageGrouping
from core.db import database_now, unit_of_work

_TRIES: Final = 40
_MONTH: Final = timedelta(days=30)
_GROUPINGS: Final[dict[str, tuple[UsageGrouping, ...]]] = {
    "in all": (),
    "by adapter": ("project_id",),
    "by adapter, key and model": ("project_id", "api_key_id", "model"),
}


def report_ms(engine: sa.Engine, tenant_id: str) -> float:
    """The 95th percentile of a month's usage by day and adapter, up to now."""

    def read() -> None:
        with unit_of_work(engine) as session:
            end = database_now(session)
            buckets.usage(
                session, tenant_id=tenant_id, start=end - _MONTH, end=end, bucket="1d", group_by="adapter"
            )  # fmt: skip

    return _p95_ms(read)


def wide_reports_ms(engine: sa.Engine, tenant_id: str) -> dict[str, float]:
    """The same of a tenant with many owners, by grouping: pages as JSON, which must have every record."""
    with unit_of_work(engine) as session:
        hour_s = int(database_now(session).timestamp()) // 3600 * 3600
    found = {}
    for name, group_by in _GROUPINGS.items():
        request = ReportRequest(
            kind="usage", tenant_id=tenant_id, start_time=hour_s - 720 * 3600, end_time=None, width="1d",
            group_by=group_by,
        )  # fmt: skip

        def read(request: ReportRequest = request) -> None:
            page = organization.usage_page(engine, request, limit=31, page=None)
            msgspec.json.encode(page)
            assert page.next_page is None
            assert sum(row.num_model_requests for bucket in page.data for row in bucket.results) == WIDE_RECORDS

        found[name] = _p95_ms(read)
    return found


def what_if_s(engine: sa.Engine, tenant_id: str) -> float:
    """Seconds to rate a tenant's month again, with prices of output and of KV cache that are a nanodollar higher. The
    second is no whole number for a page-millisecond, so every record is read.
    """
    prices = msgspec.structs.replace(
        PRICES, output_nanos=PRICES.output_nanos + 1, kv_page_second_nanos=PRICES.kv_page_second_nanos + 1
    )
    begun = time.monotonic()
    with unit_of_work(engine) as session:
        session.connection().exec_driver_sql("SET LOCAL statement_timeout = 0")
        end = database_now(session)
        version = price_book.load(session, [tenant_id]).in_force(tenant_id, end)
        assert version is not None, "the seeds give the tenant a plan"
        (found,) = what_if.simulate(
            session, plan_id=version.plan_id, card=PriceCard.of_all_models(prices), start=end - _MONTH, end=end,
            after="", limit=10,
        )  # fmt: skip
    assert found.simulated_nanos > found.amount_nanos
    return time.monotonic() - begun


def _p95_ms(read: Callable[[], None]) -> float:
    took = []
    for _ in range(_TRIES):
        begun = time.monotonic()
        read()
        took.append((time.monotonic() - begun) * 1000)
    return quantile(took, 0.95)
