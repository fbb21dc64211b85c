"""A cold load is charged for a tenant's own request that began the download, once for each replica and revision."""

from datetime import timedelta

from tests.integration.billing.resources.conftest import HOUR

# Requests of a tenant each: adapter, tier, minutes after the hour, replica and revision. Then its loads by hour.
SERVED = [
    (
        [
            ("ad_1", "store", 0, "r1", "rev_1"), ("ad_1", "slot", 1, "r1", "rev_1"),
            ("ad_1", "store", 1, "r2", "rev_1"), ("ad_1", "slot", 2, "r2", "rev_1"),
            ("ad_1", "store", 2, "r1", "rev_2"), ("ad_1", "slot", 3, "r1", "rev_2"),
        ],
        {0: 3},
    ),
    # a prefetch did it, also after our eviction
    ([("ad_1", "disk", 0, "r1", "rev_1"), ("ad_1", "store", 1, "r1", "rev_1")], {}),
    ([("ad_1", None, 0, "r1", "rev_1"), ("ad_1", "store", 1, "r1", "rev_1")], {}),
    # it repeats one after our eviction
    ([("ad_1", "store", minutes, "r1", "rev_1") for minutes in (0, 30, 90, 210)], {0: 1}),
    # the hour in which it was recorded
    ([("ad_1", "store", 59, "r1", "rev_1"), ("ad_1", "store", 60, "r2", "rev_1")], {0: 1, 1: 1}),
    # a base model is never loaded cold
    ([(None, "store", 0, "r1", None)], {}),
]  # fmt: skip


def test_the_first_download_of_a_revision_by_a_replica_is_a_load_unless_it_was_ours(resources):
    expected = {}
    for served, loads in SERVED:
        tenant = resources.tenant()
        for adapter, tier, minutes, replica, revision in served:
            at = resources.hour + timedelta(minutes=minutes)
            own = revision and f"{revision}_{tenant}"
            resources.serve(tenant, adapter, tier, at=at, replica_id=replica, revision_id=own)
        expected |= {(tenant, resources.hour + hours * HOUR): count for hours, count in loads.items()}
    resources.meter()
    assert resources.units("cold_loads") == expected
