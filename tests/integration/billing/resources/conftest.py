"""A stage for meters: tenants with prices of resources, stored revisions and pins at chosen instants."""

from datetime import datetime, timedelta

import msgspec
import pytest

from billing.prices.card import PriceCard
from billing.quotas.adjustment_runner import AdjustmentRunner
from billing.resources.metering import ResourceMeters
from billing.resources.settings import ResourceSettings
from billing.usage.metering import ActiveTenants
from core import clock
from core.contracts.grants import Prices
from core.ids import first_id_of_ms, new_id
from tests.integration.billing.conftest import Stage

HOUR = timedelta(hours=1)
FREE = PriceCard.of_all_models(Prices(input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0))
PRICED = msgspec.structs.replace(
    FREE, adapter_storage_gb_hour_nanos=100_000, pinned_slot_hour_nanos=50_000_000, cold_load_nanos=200_000
)


class ResourceStage:
    """``hour`` is a whole hour that ended three hours ago and is the first that the meters take."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.engine = stage, stage.engine
        self.settings = ResourceSettings(resource_delay_s=60)
        self.border = stage.value("SELECT date_trunc('hour', clock_timestamp() - interval '60 s', 'UTC')")
        self.hour: datetime = self.border - 4 * HOUR

    def tenant(self, card: PriceCard = PRICED, *, since: datetime | None = None) -> str:
        """A tenant that has had its prices for days, or ``since``, and has the row that its adapters need."""
        tenant_id = self.stage.tenant(card=card)
        since = since or self.hour - timedelta(days=9)
        self.stage.force("UPDATE plan_assignments SET created_at = :at WHERE tenant_id = :t", t=tenant_id, at=since)
        return tenant_id

    def adapter(self, tenant_id: str, name: str = "support", *, deleted_at: datetime | None = None) -> str:
        adapter_id = new_id("ad")
        self.stage.force(
            "INSERT INTO adapters (id, tenant_id, base_model, name, pinned, created_at, deleted_at)"
            " VALUES (:id, :t, 'base', :name, false, now(), :deleted)",
            id=adapter_id, t=tenant_id, name=name, deleted=deleted_at,
        )  # fmt: skip
        return adapter_id

    def revision(self, tenant_id: str, adapter_id: str, stored_bytes: int | None, *, ready_at: datetime, digest=None):
        revision_id, digest = new_id("rev"), digest or new_id("d")
        self.stage.force(
            "INSERT INTO revisions (id, tenant_id, adapter_id, status, size_bytes, digest, checked_digest, rank,"
            " rank_class, stored_bytes, decided_at, attempts, canary_attempts, created_at)"
            " VALUES (:id, :t, :ad, 'ready', 1, :digest, :digest, 8, 16, :bytes, :at, 1, 0, now())",
            id=revision_id, t=tenant_id, ad=adapter_id, digest=digest, bytes=stored_bytes, at=ready_at,
        )  # fmt: skip
        return revision_id

    def pin(self, tenant_id: str, adapter_id: str, at: datetime, *, pinned: bool = True, name: str = "") -> None:
        self.stage.change(
            "INSERT INTO pin_events (tenant_id, adapter_id, engine_name, base_model, rank_class, pinned, at)"
            " VALUES (:t, :ad, :name, 'base', 16, :pinned, :at)",
            t=tenant_id, ad=adapter_id, name=name or adapter_id, pinned=pinned, at=at,
        )  # fmt: skip

    def serve(self, tenant_id: str, adapter_id: str, tier: str | None, *, at: datetime, **changes) -> None:
        """Record a request, as if it had been recorded at that instant."""
        at_ms = clock.to_ms(at)
        known = {row["id"] for row in self.stage.rows("SELECT id FROM transfers")}
        self.stage.bill(
            self.stage.event(
                tenant_id,
                request_id=first_id_of_ms("req", at_ms)[:-12] + new_id("req")[-12:],
                adapter_id=adapter_id,
                adapter_tier=tier,
                settled_at_ms=at_ms,
                **({"revision_id": "rev_1"} | changes),
            )
        )
        for row in self.stage.rows("SELECT id FROM transfers WHERE kind = 'usage'"):
            if row["id"] not in known:
                moved = first_id_of_ms("tr", at_ms)[:-12] + row["id"][-12:]
                self.stage.force(
                    "UPDATE transfers SET id = :new, created_at = :at WHERE id = :old", new=moved, at=at, old=row["id"]
                )
                for table in ("entries", "usage_records"):
                    sql = f"UPDATE {table} SET transfer_id = :new WHERE transfer_id = :old"
                    self.stage.force(sql, new=moved, old=row["id"])

    def begin(self) -> None:
        """Have the meters begin with ``hour``, unless they have begun."""
        self.stage.change(
            "INSERT INTO metered_hours SELECT kind, cast(:before AS timestamptz), clock_timestamp()"
            " FROM unnest(ARRAY['adapter_storage', 'pinned_slots', 'cold_loads']) AS kind ON CONFLICT DO NOTHING",
            before=self.hour - HOUR,
        )

    def meter(self) -> int:
        """Run the meters over all hours from ``hour`` on that are due."""
        self.begin()
        return ResourceMeters(self.engine, self.settings).run_once()

    def units(self, kind: str) -> dict[tuple[str, datetime], int]:
        rows = self.stage.rows("SELECT tenant_id, hour, units FROM resource_hours WHERE kind = :kind", kind=kind)
        found: dict[tuple[str, datetime], int] = {}
        for row in rows:
            found[row["tenant_id"], row["hour"]] = found.get((row["tenant_id"], row["hour"]), 0) + row["units"]
        return found

    def runner(self) -> AdjustmentRunner:
        return AdjustmentRunner(self.engine, self.stage.redis, ActiveTenants(), price_age_max=timedelta(days=1))


@pytest.fixture
def resources(stage) -> ResourceStage:
    return ResourceStage(stage)
