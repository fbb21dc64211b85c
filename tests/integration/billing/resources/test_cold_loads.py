"""A cold load is charged for a tenant's own request that began the download, once for each replica and revision."""

from datetime import timedelta

import pytest

from tests.integration.billing.resources.conftest import HOUR

MINUTE = timedelta(minutes=1)


@pytest.fixture
def tenant(resources) -> str:
    return resources.tenant()


def test_each_replica_that_had_to_download_a_revision_is_one_load(resources, tenant):
    for number, (replica, revision) in enumerate((("r1", "rev_1"), ("r2", "rev_1"), ("r1", "rev_2"))):
        at = resources.hour + number * MINUTE
        resources.serve(tenant, "ad_1", "store", at=at, replica_id=replica, revision_id=revision)
        resources.serve(tenant, "ad_1", "slot", at=at + MINUTE, replica_id=replica, revision_id=revision)
    resources.meter()
    assert resources.units("cold_loads") == {(tenant, resources.hour): 3}


@pytest.mark.parametrize("first", ["disk", None])
def test_a_load_that_a_prefetch_did_is_none_also_after_our_eviction(resources, tenant, first):
    resources.serve(tenant, "ad_1", first, at=resources.hour)
    resources.serve(tenant, "ad_1", "store", at=resources.hour + MINUTE)
    resources.meter()
    assert resources.units("cold_loads") == {}


def test_a_load_that_repeats_one_after_our_eviction_is_none(resources, tenant):
    resources.serve(tenant, "ad_1", "store", at=resources.hour)
    for hours in (0, 1, 3):
        resources.serve(tenant, "ad_1", "store", at=resources.hour + hours * HOUR + 30 * MINUTE)
    resources.meter()
    assert resources.units("cold_loads") == {(tenant, resources.hour): 1}


def test_a_load_belongs_to_the_hour_in_which_it_was_recorded(resources, tenant):
    resources.serve(tenant, "ad_1", "store", at=resources.hour + HOUR - timedelta(seconds=1))
    resources.serve(tenant, "ad_1", "store", at=resources.hour + HOUR, replica_id="r2")
    resources.meter()
    assert resources.units("cold_loads") == {(tenant, resources.hour): 1, (tenant, resources.hour + HOUR): 1}


def test_a_base_model_is_never_loaded_cold(resources, tenant):
    resources.serve(tenant, None, "store", at=resources.hour, revision_id=None)
    resources.meter()
    assert resources.units("cold_loads") == {}
