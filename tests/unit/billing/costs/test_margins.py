"""Margins of tenants and models: known only where every replica of the base models that they used has a rate."""

import pytest

from billing.costs.allocation import CostOwner
from billing.costs.report import OwnedCost, margins
from billing.costs.revenue import ACCOUNT, Revenue

A, B = CostOwner(tenant_id="tn_a"), CostOwner(tenant_id="tn_b")


def used(owner: CostOwner, base_model: str, nanos: int = 1_000) -> Revenue:
    return Revenue(owner=owner, base_model=base_model, input_tokens=5, usage_nanos=nanos)


def cost(owner: CostOwner, base_model: str) -> OwnedCost:
    return OwnedCost(base_model=base_model, rank_max=16, owner=owner, kind="prefill", nanos=250)


FEE = Revenue(owner=B, base_model=ACCOUNT, account_nanos=1_000)
STORED = Revenue(owner=B, base_model="m", resource_nanos=1_000)


@pytest.mark.parametrize(
    ("charged", "costs", "rated", "expected"),
    [
        ([used(A, "m")], [cost(A, "m")], {"m"}, {"tn_a": (750, 750_000)}),
        ([used(A, "m")], [], set(), {"tn_a": (None, None)}),
        ([used(A, "m")], [cost(A, "m")], set(), {"tn_a": (None, None)}),
        ([used(A, "m", nanos=0)], [], set(), {"tn_a": (None, None)}),
        ([used(A, "m"), used(A, "n")], [cost(A, "m")], {"m"}, {"tn_a": (None, None)}),
        ([used(A, "n"), used(B, "m")], [cost(B, "m")], {"m"}, {"tn_a": (None, None), "tn_b": (750, 750_000)}),
        ([FEE], [], set(), {"tn_b": (1_000, 1_000_000)}),
        ([STORED], [], set(), {"tn_b": (1_000, 1_000_000)}),
        ([used(B, "m"), FEE], [], set(), {"tn_b": (None, None)}),
        ([], [cost(A, "m")], {"m"}, {"tn_a": (-250, None)}),
    ],
)
def test_a_margin_is_null_where_a_replica_has_no_rate(charged, costs, rated, expected):
    found = margins(costs, charged, "tenant", rated)
    assert {row.key: (row.margin_nanos, row.margin_ppm) for row in found} == expected


def test_the_other_models_keep_their_margin():
    rows = {row.key: row for row in margins([cost(A, "m")], [used(A, "m"), used(A, "n")], "model", {"m"})}
    assert (rows["m"].margin_nanos, rows["n"].margin_nanos) == (750, None)
