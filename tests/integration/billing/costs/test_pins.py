"""Pinned slots cost their declared rate out of the idle time of the replicas that keep them."""

from datetime import timedelta

import pytest

from billing.costs.hours import allocate_due
from core import clock
from tests.integration.billing.costs.conftest import BASE, NANOS_PER_HOUR

HOUR_S = 3_600


def pin(costs, tenant: str, name: str, from_s: int, until_s: int | None = None, rank_class: int = 16) -> None:
    for second, pinned in ((from_s, True), (until_s, False)):
        if second is not None:
            costs.stage.change(
                "INSERT INTO pin_events (tenant_id, adapter_id, engine_name, base_model, rank_class, pinned, at)"
                " VALUES (:t, 'ad_1', :name, :base, :rank, :pinned, :at)",
                t=tenant, name=name, base=BASE, rank=rank_class, pinned=pinned,
                at=clock.from_ms(costs.hour_ms) + timedelta(seconds=second),
            )  # fmt: skip


@pytest.mark.scenario(177)
def test_two_pinned_slots_of_eight_cost_their_declared_rate_out_of_idle(costs):
    (tenant,) = costs.tenants(1)
    costs.rate(slot_nanos_per_hour=NANOS_PER_HOUR // 8)
    for name in ("ad_1@a", "ad_1@b"):
        pin(costs, tenant, name, -99)
    costs.store(costs.window(0, HOUR_S, final=True))
    assert allocate_due(costs.engine, costs.settings).hours == 1
    assert costs.rows() == {tenant: NANOS_PER_HOUR // 4, "idle": NANOS_PER_HOUR * 3 // 4}
    kinds = costs.stage.rows("SELECT kind, adapter_id, plan_id FROM cost_rows WHERE tenant_id <> ''")
    assert [tuple(row.values()) for row in kinds] == [("pinned", "ad_1", costs.stage.plan_of(tenant))]


def test_a_part_of_an_hour_costs_its_part_and_another_pool_pays_nothing(costs):
    (tenant,) = costs.tenants(1)
    costs.rate(slot_nanos_per_hour=NANOS_PER_HOUR // 8)
    costs.rate(slot_nanos_per_hour=NANOS_PER_HOUR // 8, rank_max=64)
    pin(costs, tenant, "ad_1@a", 900, 2_700, rank_class=8)
    costs.store(
        costs.window(0, HOUR_S, final=True),
        costs.window(0, HOUR_S, final=True, replica_id="rep_64", boot_id="boot_64", rank_max=64),
    )
    allocate_due(costs.engine, costs.settings)
    assert costs.stage.value("SELECT nanos FROM cost_rows WHERE tenant_id <> ''") == NANOS_PER_HOUR // 16
    assert costs.stage.value("SELECT replica_id FROM cost_rows WHERE tenant_id <> ''") == "rep_1"
