"""A stage for cost attribution: windows as agents report them, rates, and usage at chosen instants."""

from datetime import datetime, timedelta

import msgspec
import pytest

from billing.costs import price_book
from billing.costs.rates import MS_PER_HOUR, DatedRate
from billing.costs.settings import CostSettings
from billing.costs.window_reader import store_windows
from core import clock, redis_keys
from core.contracts.costs import CostWindow
from core.db import unit_of_work
from core.ids import first_id_of_ms, new_id
from tests.integration.billing.conftest import Stage

BASE = "smollm2-135m-instruct"
NANOS_PER_HOUR = 3_600_000_000  # 1,000 nanodollars a millisecond


class CostStage:
    """``hour_ms`` is a whole hour that ended at least an hour ago."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.engine, self.redis = stage, stage.engine, stage.redis
        self.settings = CostSettings(cost_allocation_delay_s=0)
        self.hour_ms = clock.to_ms(stage.now()) // MS_PER_HOUR * MS_PER_HOUR - 2 * MS_PER_HOUR
        self._sequence = 0

    def rate(self, nanos_per_hour: int = NANOS_PER_HOUR, *, from_ms: int | None = None, **changes: int | str) -> None:
        with unit_of_work(self.engine) as session:
            price_book.add_rate(
                session,
                DatedRate(
                    base_model=BASE,
                    effective_from=clock.from_ms(self.hour_ms - MS_PER_HOUR if from_ms is None else from_ms),
                    nanos_per_hour=nanos_per_hour,
                    **({"rank_max": 16, "slot_nanos_per_hour": 0} | changes),
                ),
            )

    def window(self, start_s: int, end_s: int, state: str = "ready", **changes) -> CostWindow:
        self._sequence += 1
        values = {
            "replica_id": "rep_1", "boot_id": "boot_1", "sequence": self._sequence, "base_model": BASE, "rank_max": 16,
            "engine": "vllm 0.32.0", "device": "cpu", "state": state, "start_ms": self.hour_ms + start_s * 1_000,
            "end_ms": self.hour_ms + end_s * 1_000,
        }  # fmt: skip
        return CostWindow(**(values | changes))

    def publish(self, *windows: CostWindow | bytes) -> None:
        for window in windows:
            encoded = window if isinstance(window, bytes) else msgspec.json.encode(window)
            self.redis.xadd(redis_keys.COST_WINDOWS, {"window": encoded})

    def store(self, *windows: CostWindow | bytes) -> int:
        self.publish(*windows)
        return store_windows(self.engine, self.redis, self.settings)

    def use(self, tenant_id: str, *, ended_s: int, lasted_s: int = 10, first_token_s: int = 0, **changes) -> None:
        """Record one request of the replica that ended ``ended_s`` after the hour's beginning."""
        ended_ms = self.hour_ms + ended_s * 1_000
        started_ms = ended_ms - lasted_s * 1_000
        suffix = new_id("req")[-12:]
        self.stage.bill(
            self.stage.event(
                tenant_id,
                request_id=first_id_of_ms("req", started_ms)[:-12] + suffix,
                started_at_ms=started_ms,
                settled_at_ms=ended_ms,
                first_token_ms=first_token_s * 1_000,
                **({"cached_tokens": 0, "kv_page_ms": 0} | changes),
            )
        )

    def tenants(self, count: int) -> list[str]:
        """Tenants whose prices are older than the hour."""
        found = sorted(self.stage.tenant() for _ in range(count))
        self.stage.force(
            "UPDATE plan_assignments SET effective_from = :at", at=clock.from_ms(self.hour_ms) - timedelta(days=9)
        )
        return found

    def rows(self, hour_ms: int | None = None) -> dict[str, int]:
        """The stored rows of an hour by tenant, or by kind for the platform's."""
        found = self.stage.rows(
            "SELECT coalesce(nullif(tenant_id, ''), kind) AS owner, sum(nanos)::bigint AS nanos FROM cost_rows"
            " WHERE hour_ms = :hour GROUP BY 1",
            hour=self.hour_ms if hour_ms is None else hour_ms,
        )
        return {row["owner"]: row["nanos"] for row in found}

    def at(self, hours: int) -> datetime:
        return clock.from_ms(self.hour_ms + hours * MS_PER_HOUR)


@pytest.fixture
def costs(stage) -> CostStage:
    return CostStage(stage)
