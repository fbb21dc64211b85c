"""Hours of storage and cold loads are metered once, for tenants that pay for them."""

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest
import sqlalchemy as sa

from billing.charges.resource_meter import ResourceMeter
from billing.prices.card import PriceCard
from core import clock
from tests.integration.billing.conftest import PRICES

PAID = msgspec.structs.replace(
    PriceCard.of_all_models(PRICES), adapter_storage_gb_hour_nanos=100_000, cold_load_nanos=200_000
)
HOUR = timedelta(hours=1)


def last_hour(stage):
    """The last hour that is metered by now."""
    return (stage.now() - timedelta(minutes=10)).replace(minute=0, second=0, microsecond=0) - HOUR


def store(stage, tenant: str, adapter: str, size_bytes: int, since, until=None) -> None:
    """A ready revision of an adapter, without the rows of the control plane that it would belong to."""
    values = {"a": adapter, "t": tenant, "size": size_bytes, "since": since, "until": until}
    with stage.engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))  # without foreign keys
        connection.execute(
            sa.text(
                "INSERT INTO adapters (id, tenant_id, name, base_model, pinned, created_at)"
                " VALUES (:a, :t, :a, 'base', false, now())"
            ),
            values,
        )
        connection.execute(
            sa.text(
                "INSERT INTO revisions (id, tenant_id, adapter_id, status, size_bytes, digest, canary_attempts,"
                " attempts, created_at, decided_at, stored_removed_at)"
                " VALUES ('rev_' || :a, :t, :a, 'ready', :size, 'd', 0, 0, now(), :since, :until)"
            ),
            values,
        )


def hours(stage, kind: str) -> list[tuple]:
    rows = stage.rows("SELECT hour, adapter_id, quantity FROM resource_hours WHERE kind = :k ORDER BY 1, 2", k=kind)
    return [(row["hour"], row["adapter_id"], row["quantity"]) for row in rows]


@pytest.mark.scenario(13)
def test_bytes_are_metered_for_the_part_of_an_hour_that_they_were_stored(stage):
    tenant, free = stage.tenant(card=PAID), stage.tenant()
    hour = last_hour(stage)
    store(stage, tenant, "ad_whole", 500_000_000, hour - 5 * HOUR)
    store(stage, tenant, "ad_half", 500_000_000, hour + HOUR / 2)
    store(stage, tenant, "ad_gone", 500_000_000, hour - 5 * HOUR, until=hour + HOUR / 4)
    store(stage, tenant, "ad_before", 500_000_000, hour - 5 * HOUR, until=hour)
    store(stage, free, "ad_free", 500_000_000, hour - 5 * HOUR)
    ResourceMeter(stage.engine).run_once()
    expected = [
        (hour, "ad_gone", Decimal("0.125")), (hour, "ad_half", Decimal("0.25")), (hour, "ad_whole", Decimal("0.5")),
    ]  # fmt: skip
    assert hours(stage, "adapter_storage") == expected
    ResourceMeter(stage.engine).run_once()
    assert hours(stage, "adapter_storage") == expected


def test_hours_in_which_no_worker_ran_are_metered_afterwards(stage):
    tenant = stage.tenant(card=PAID)
    hour = last_hour(stage)
    store(stage, tenant, "ad_1", 1_000_000_000, hour - 50 * HOUR)
    stage.change(
        "INSERT INTO resource_hours VALUES (:t, :h, 'adapter_storage', 'ad_1', 1)", t=tenant, h=hour - 4 * HOUR
    )
    ResourceMeter(stage.engine).run_once()
    assert hours(stage, "adapter_storage") == [(hour - back * HOUR, "ad_1", 1) for back in (4, 3, 2, 1, 0)]


@pytest.mark.scenario(15)
def test_a_load_from_the_store_counts_once_for_each_replica_and_hour(stage):
    tenant, free = stage.tenant(card=PAID), stage.tenant()
    at = clock.to_ms(last_hour(stage))
    load = {"adapter_id": "ad_1", "revision_id": "rev_1", "adapter_tier": "store", "adapter_load_ms": 900}
    events = [
        load,
        load,  # evicted by us and loaded again
        load | {"replica_id": "rep_2"},
        load | {"revision_id": "rev_2"},
        load | {"adapter_tier": "disk"},
        load | {"adapter_tier": "slot", "adapter_load_ms": 0},  # a prefetch had loaded it
    ]
    stage.bill(
        *(stage.event(tenant, settled_at_ms=at + number, **each) for number, each in enumerate(events)),
        stage.event(free, settled_at_ms=at, **load),
    )
    ResourceMeter(stage.engine).run_once()
    assert hours(stage, "cold_loads") == [(last_hour(stage), "ad_1", 3)]
