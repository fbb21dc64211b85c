"""Whom a pool of replicas serves."""

import pytest

from core.contracts.routes import PoolRoute


@pytest.mark.parametrize(
    ("restriction", "serves"),
    [
        ({}, True), ({"service_classes": ("interactive",)}, True), ({"service_classes": ("batch",)}, False),
        ({"tenants": ("tn_1", "tn_2")}, True), ({"tenants": ("tn_2",)}, False),
        ({"tokens_min": 100}, True), ({"tokens_min": 101}, False), ({"tokens_max": 100}, True),
        ({"tokens_max": 99}, False), ({"tenants": ("tn_1",), "tokens_max": 99}, False),
    ],
)  # fmt: skip
def test_a_pool_serves_a_request_that_meets_every_restriction(restriction, serves):
    assert PoolRoute(base_model="m", **restriction).serves("tn_1", "interactive", 100) is serves
