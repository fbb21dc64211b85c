"""Requests whose gateway died: charged once by their last checkpoint and shown as estimates; their lost tokens are
reported.
"""

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from billing.quotas import rebuild
from billing.usage.buckets import usage
from core import redis_keys
from core.contracts.grants import TenantGrant
from core.contracts.usage import REST
from core.db import unit_of_work
from core.rating import rate
from data_plane.gateway.quota.consumption import saved_by_cache, used_by
from data_plane.gateway.quota.reservation import Checkpoint, Settlement
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.quota.levels import ask, connected, granted, reserve, scripts
from tests.integration.billing.conftest import PRICES


def estimate(stage, tenant, **changes):
    return stage.event(tenant, outcome="gateway_gone", estimated=True, **changes)


def test_an_estimate_never_contradicts_a_recorded_event(stage):
    tenant = stage.tenant()
    exact = stage.event(tenant, output_tokens=50)
    late = estimate(stage, tenant, request_id=exact.request_id, output_tokens=10)
    stage.bill(exact)
    stage.bill(late)
    assert (stage.pending, stage.dead_letters()) == (0, [])
    assert stage.value("SELECT output_tokens FROM usage_records") == 50


@pytest.mark.scenario(69)
def test_an_exact_event_after_the_estimate_bills_the_rest_and_is_no_second_request(stage):
    """The gateway was away for longer than the lifetime of the marker of the estimate."""
    tenant = stage.tenant()
    late = estimate(stage, tenant, output_tokens=20, kv_page_ms=1_601)
    exact = msgspec.structs.replace(
        late, estimated=False, outcome="done", output_tokens=50, kv_page_ms=2_305, duration_ms=5
    )
    stage.bill(late)
    stage.bill(exact)
    stage.bill(exact)  # the event arrives again
    assert (stage.pending, stage.dead_letters()) == (0, [])
    rows = stage.rows("SELECT request_id, input_tokens, output_tokens, estimated FROM usage_records ORDER BY 1")
    assert [tuple(row.values()) for row in rows] == [
        (late.request_id, 100, 20, True),
        (late.request_id + REST, 0, 30, False),
    ]
    with unit_of_work(stage.engine) as session:
        (bucket,) = usage(
            session, tenant_id=tenant, start=stage.now() - timedelta(hours=1), end=stage.now() + timedelta(hours=1),
            bucket="1d", group_by="revision",
        )  # fmt: skip
    assert (bucket.requests, bucket.estimated_requests, bucket.output_tokens) == (1, 1, 50)
    assert bucket.service.outcomes == {"gateway_gone": 1}
    (invoice,) = stage.close()
    lines = {line.kind: line for line in stage.invoice(invoice.id).lines}
    assert {line.request_count for line in lines.values()} == {1}
    assert (lines["output_tokens"].quantity, lines["kv_page_seconds"].quantity) == (50, Decimal("2.305"))


def test_the_rest_of_an_estimate_has_the_aborted_prefills(stage):
    tenant = stage.tenant()
    late = estimate(stage, tenant, input_tokens=100, output_tokens=20)
    exact = msgspec.structs.replace(
        late, estimated=False, outcome="client_gone", input_tokens=180, aborted_prefill_tokens=80
    )
    stage.bill(late)
    stage.bill(exact)
    rows = stage.rows("SELECT input_tokens, aborted_prefill_tokens FROM usage_records ORDER BY request_id")
    assert [tuple(row.values()) for row in rows] == [(100, 0), (80, 80)]


def test_an_exact_event_with_nothing_beyond_the_estimate_adds_nothing(stage):
    tenant = stage.tenant()
    late = estimate(stage, tenant)
    stage.bill(late)
    stage.bill(msgspec.structs.replace(late, estimated=False, outcome="done", duration_ms=999))
    assert (stage.pending, stage.dead_letters()) == (0, [])
    assert stage.value("SELECT count(*) FROM usage_records") == 1


def test_another_tenants_exact_event_is_no_rest(stage):
    tenant, other = stage.tenant(), stage.tenant()
    late = estimate(stage, tenant)
    stage.bill(late)
    stage.bill(msgspec.structs.replace(late, estimated=False, outcome="done", tenant_id=other, output_tokens=99))
    assert stage.pending == 1
    assert stage.value("SELECT count(*) FROM usage_records") == 1


def test_an_invoice_with_only_a_rest_counts_one_request(stage):
    """Two truncated page costs stay within the tolerance between an invoice line and its product."""
    tenant = stage.tenant()
    late = estimate(stage, tenant, kv_page_ms=1)
    stage.bill(late)
    stage.close()
    stage.bill(msgspec.structs.replace(late, estimated=False, outcome="done", kv_page_ms=1_001, output_tokens=70))
    (invoice,) = stage.close()
    assert {line.request_count for line in stage.invoice(invoice.id).lines} == {1}


@pytest.mark.parametrize(("counts_cached", "read_between"), [(True, False), (False, True)])
async def test_an_estimates_cached_tokens_stay_cached_and_quotas_count_them_like_the_ledger(
    stage, redis_settings, counts_cached, read_between
):
    tenant = stage.tenant()
    limits = msgspec.structs.replace(AMPLE, count_cached_tokens=counts_cached)
    grant = TenantGrant(tenant_id=tenant, status="active", limits=limits, prices=PRICES)
    stage.redis.hset(redis_keys.snapshot("tenants"), tenant, msgspec.json.encode(grant))
    wanted = ask(60, prompts=[1000])
    early = estimate(stage, tenant, request_id=wanted.request_id, input_tokens=1000, cached_tokens=1000)
    exact = msgspec.structs.replace(early, estimated=False, outcome="done", cached_tokens=900, output_tokens=50)
    async with connected(redis_settings.redis_url) as (_, line):
        quota = scripts(line)
        assert not (await reserve(quota, wanted, granted(tenant, prices=PRICES))).blocked_by
        noted = Checkpoint(event=early, used=used_by(early, grant))
        await quota.renew({(tenant, "rep_one"): {wanted.request_id: noted}})
        stage.redis.zadd(redis_keys.tenant_leases(tenant), {wanted.request_id: 1})
        assert await quota.sweep(tenant) == 1
        if read_between:
            stage.drain()
        ending = Settlement(
            request_id=wanted.request_id, tenant_id=tenant, replica_id="rep_one", used=used_by(exact, grant),
            cached_saves=saved_by_cache(exact, grant), event=exact,
        )  # fmt: skip
        assert await quota.settle(ending)
    assert rebuild.rebuild(stage.engine, stage.redis).corrected == 0
    stage.drain()
    assert (stage.pending, stage.dead_letters()) == (0, [])
    assert rebuild.rebuild(stage.engine, stage.redis).corrected == 0
    charged = stage.value("SELECT sum(amount_nanos) FROM usage_records")
    assert charged == rate(exact, PRICES).amount_nanos - 100 * (PRICES.input_nanos - PRICES.cached_input_nanos)
