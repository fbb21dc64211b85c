"""A tenant for whom a task fails is counted and returned, and all others are served."""

import msgspec
import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeout

from billing import metrics
from billing.each_tenant import each_tenant
from core.errors import InvalidRequest


@pytest.mark.parametrize(
    "failure",
    [InvalidRequest("x"), msgspec.ValidationError("x"), PoolTimeout("x"), ValueError("x"), OverflowError("x")],
    ids=lambda failure: type(failure).__name__,
)
def test_a_tenant_that_fails_for_any_reason_stops_no_other(failure):
    served = []

    def act(tenant_id):
        if tenant_id == "tn_2":
            raise failure
        served.append(tenant_id)

    before = metrics.TENANT_FAILURES.labels("a test")._value.get()
    assert each_tenant(["tn_1", "tn_2", "tn_3"], "a test", act) == ["tn_2"]
    assert served == ["tn_1", "tn_3"]
    assert metrics.TENANT_FAILURES.labels("a test")._value.get() == before + 1
