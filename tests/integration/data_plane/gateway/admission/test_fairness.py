"""Fairness and overload on real gateways before a witness: short runs of ``benchmarks.fairness``, with bounds that a
queue without fairness misses by far.
"""

from dataclasses import replace

import pytest

from benchmarks.fairness import __main__ as fairness
from benchmarks.load import TenantLoad, quantile, tokens_per_s
from tests.conftest import running_valkey

pytestmark = pytest.mark.quiet


@pytest.fixture(scope="module")
def deployment(redis_server, tmp_path_factory):
    with fairness.deployment(tmp_path_factory.mktemp("fair"), redis_server, pages=fairness.PAGES // 4) as on:
        yield on


def test_a_flood_does_not_delay_a_quiet_tenant(deployment):
    seen = fairness.quiet_beside_a_flood(deployment, seconds=6, quiet_per_s=1.0)
    assert seen["quiet_refused"] == 0
    assert seen["flood_refused"] > 0, "it was no flood"
    # In turn of arrival it would wait for seconds.
    assert seen["p50_s"]["beside"] <= 1.25 * seen["p50_s"]["alone"]
    assert seen["p99_s"]["beside"] <= 2 * seen["p99_s"]["alone"]


def test_at_ten_times_the_capacity_requests_are_served_up_to_it_and_refused_at_once_above(deployment):
    capacity_per_s = fairness.CAPACITY_PER_S / 4
    tenants = [deployment.tenant(f"{n}") for n in range(10)]
    answers = deployment.run(*(TenantLoad(name=p.name, key=p.key, per_s=capacity_per_s) for p in tenants), seconds=6)
    goodput = tokens_per_s(answers, after_s=2.5, until_s=6)
    assert goodput >= 0.7 * capacity_per_s * fairness.TOKENS
    refused = [a.total_s for a in answers if a.status == 503 and a.sent_s >= 2.5]
    assert len(refused) > 100
    assert quantile(refused, 0.5) <= 0.05
    served = [sum(a.status == 200 for a in answers if a.tenant == p.name) for p in tenants]
    assert max(served) <= 2 * min(served)


def test_a_tenant_at_two_gateways_gets_the_share_of_a_tenant_at_one(tmp_path):
    own_redis = running_valkey(tmp_path)  # a deployment empties its Redis, and the other tests' one still runs
    with own_redis as url, fairness.deployment(tmp_path, url, pages=fairness.PAGES // 4, gateways=2) as on:
        everywhere, at_one = on.tenant("everywhere", at_once=48), replace(on.tenant("at one", at_once=24), gateway=0)
        answers = on.run(everywhere, at_one, seconds=8)
    tokens = [tokens_per_s(answers, after_s=3, until_s=8, tenant=tenant.name) for tenant in (everywhere, at_one)]
    # If each gateway kept its own share, the ratio would be above two to one.
    assert max(tokens) <= 1.6 * min(tokens)
    assert sum(tokens) >= 0.7 * fairness.CAPACITY_PER_S / 4 * fairness.TOKENS
