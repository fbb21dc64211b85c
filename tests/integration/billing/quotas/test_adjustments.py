"""The ledger ends at what a period's usage costs by its tiers, and quotas follow."""

from datetime import timedelta

import msgspec
import pytest

from billing.invoicing.drafts import read_drafts
from billing.limits import spend_limits, spending
from billing.prices import price_book
from billing.prices.card import PriceCard, PriceTier, TieredPrice
from billing.quotas.adjustment_runner import AdjustmentRunner
from billing.subscriptions import assignments
from billing.usage.metering import ActiveTenants
from core import clock, redis_keys
from core.contracts.grants import Prices, TenantGrant
from core.db import unit_of_work
from core.ids import new_id
from tests.conftest import wait_until
from tests.fixtures.gateway.published import AMPLE
from tests.fixtures.together import together
from tests.integration.billing.test_worker import environment, worker

FREE = Prices(input_nanos=0, cached_input_nanos=0, output_nanos=0, kv_page_second_nanos=0)
MILLION = 1_000_000
STEPS = (
    PriceTier(up_to=MILLION, unit_price_nanos=600),
    PriceTier(up_to=10 * MILLION, unit_price_nanos=500),
    PriceTier(up_to=None, unit_price_nanos=400),
)


def tiered_tenant(stage, mode: str) -> str:
    tenant_id, plan_id = new_id("tn"), new_id("pl")
    tiers = (TieredPrice(quantity="output_tokens", mode=mode, tiers=STEPS),)
    card = msgspec.structs.replace(PriceCard.of_all_models(FREE), tiers=tiers)
    with unit_of_work(stage.engine) as session:
        price_book.add_version(session, plan_id=plan_id, card=card)
        assignments.assign_plan(session, tenant_id=tenant_id, plan_id=plan_id)
    return tenant_id


def use(stage, tenant: str, *outputs: int, **changes) -> None:
    stage.bill(*(stage.event(tenant, output_tokens=tokens, kv_page_ms=0, **changes) for tokens in outputs))


def runner(stage) -> AdjustmentRunner:
    return AdjustmentRunner(stage.engine, stage.redis, ActiveTenants(), price_age_max=timedelta(days=1))


@pytest.mark.scenario(27)
def test_an_event_in_the_grace_across_a_tier_border_gives_the_draft_of_a_fresh_calculation(stage):
    minute_ago = clock.to_ms(stage.now() - timedelta(minutes=1))
    adjusted, fresh = tiered_tenant(stage, "graduated"), tiered_tenant(stage, "graduated")
    use(stage, adjusted, 900_000)
    runner(stage).adjust_tenant(adjusted)
    use(stage, adjusted, 200_000, settled_at_ms=minute_ago)
    use(stage, fresh, 200_000, settled_at_ms=minute_ago)
    use(stage, fresh, 900_000)
    of_both = [
        [
            (line.tier, line.quantity, line.amount_nanos)
            for draft in read_drafts(stage.engine, tenant, grace=timedelta(hours=1))
            for line in draft.lines
            if line.kind == "output_tokens"
        ]
        for tenant in (adjusted, fresh)
    ]
    assert of_both[0] == of_both[1]
    assert sum(nanos for _, _, nanos in of_both[0]) == 600_000_000 + 50_000_000


@pytest.mark.scenario(25)
def test_a_volume_that_reaches_a_cheaper_tier_lowers_what_is_unbilled(stage):
    tenant = tiered_tenant(stage, "volume")
    use(stage, tenant, 9 * MILLION)
    runner(stage).adjust_tenant(tenant)
    assert stage.balance("usage_unbilled", tenant) == 4_500_000_000
    use(stage, tenant, 2 * MILLION)
    runner(stage).adjust_tenant(tenant)
    assert stage.balance("usage_unbilled", tenant) == 4_400_000_000
    assert stage.value("SELECT count(*) FROM usage_adjustments") == 2


@pytest.mark.scenario(24)
def test_two_workers_across_a_tier_border_end_at_the_same_amount(stage):
    tenant = tiered_tenant(stage, "graduated")
    stage.publish(*(stage.event(tenant, output_tokens=120_000, kv_page_ms=0) for _ in range(100)))

    def work() -> None:
        while entries := stage.stream.read(count=10, block_ms=None):
            stage.meter.process(entries)
            runner(stage).adjust_tenant(tenant)

    together(work, work)
    runner(stage).adjust_tenant(tenant)
    assert stage.balance("usage_unbilled", tenant) == 5_900_000_000


def test_an_invoice_has_the_lines_of_the_tiers_whether_or_not_they_were_adjusted(stage):
    tenant = tiered_tenant(stage, "graduated")
    use(stage, tenant, 1_500_000)
    runner(stage).adjust_tenant(tenant)
    use(stage, tenant, 500_000, adapter_id="ad_1")
    (invoice,) = stage.close()
    assert invoice.amount_nanos == MILLION * 600 + MILLION * 500
    outputs = [line for line in stage.invoice(invoice.id).lines if line.kind == "output_tokens"]
    assert [(line.tier, line.base_model, line.quantity) for line in outputs] == [(1, None, MILLION), (2, None, MILLION)]
    assert stage.balance("usage_unbilled", tenant) == 0
    assert stage.reconcile().ledger_drift_nanos == 0
    use(stage, tenant, MILLION)
    (second,) = stage.close()
    assert second.amount_nanos == MILLION * 500, "the period goes on after the close, and so do its tiers"


def spent(stage, tenant: str) -> int:
    return int(stage.redis.hget(redis_keys.tenant_quota(tenant), "spent_nanos"))


def settle(stage, tenant: str, tokens: int) -> None:
    """Use tokens as a gateway settles them: at the highest price."""
    event = stage.event(tenant, output_tokens=tokens, kv_page_ms=0)
    quota = redis_keys.tenant_quota(tenant)
    stage.redis.hset(quota, "month", stage.now().strftime("%Y-%m"))
    stage.redis.hincrby(quota, "month_used", event.input_tokens + tokens)
    for field in ("month_spent_nanos", "spent_nanos"):
        stage.redis.hincrby(quota, field, tokens * 600)
    stage.publish(event)


def spend(stage, tenant: str, tokens: int) -> None:
    settle(stage, tenant, tokens)
    stage.drain()


def published(stage) -> str:
    tenant = tiered_tenant(stage, "graduated")
    grant = TenantGrant(tenant_id=tenant, status="active", limits=AMPLE)
    stage.redis.hset(redis_keys.snapshot("tenants"), tenant, msgspec.json.encode(grant))
    return tenant


@pytest.fixture
def watched() -> ActiveTenants:
    return ActiveTenants()


@pytest.fixture
def adjusting(stage, watched) -> AdjustmentRunner:
    return AdjustmentRunner(stage.engine, stage.redis, watched, price_age_max=timedelta(days=1))


@pytest.mark.scenario(30)
def test_the_quota_of_a_tenant_falls_to_the_adjusted_amount(stage, watched, adjusting):
    tenant = published(stage)
    spend(stage, tenant, 12 * MILLION)
    adjusting.run_once()
    assert spent(stage, tenant) == 5_900_000_000
    spend(stage, tenant, MILLION)
    adjusting.run_once()
    assert spent(stage, tenant) == 6_500_000_000
    watched.add([tenant])
    adjusting.run_once()
    assert spent(stage, tenant) == 6_300_000_000


@pytest.mark.parametrize("window", ["day", "month"])
def test_the_limit_of_a_window_falls_to_the_adjusted_amount_for_the_tenant_only(stage, watched, adjusting, window):
    """An adjustment belongs to no key, so the limit of a key counts the highest price."""
    tenant = tiered_tenant(stage, "graduated")
    with unit_of_work(stage.engine) as session:
        for scope, subject_id in (("tenant", ""), ("key", "key_1")):
            spend_limits.set_limit(
                session, tenant_id=tenant, scope=scope, subject_id=subject_id, window=window,
                amount_nanos=10_000_000_000,
            )  # fmt: skip
        found = spending.read(session, [tenant])(tenant)
    limits = found.limits
    grant = TenantGrant(tenant_id=tenant, status="active", limits=AMPLE, zone=found.zone, spend_limits=limits)
    stage.redis.hset(redis_keys.snapshot("tenants"), tenant, msgspec.json.encode(grant))
    quotas = [
        redis_keys.spend_window_quota(tenant, each.scope, each.subject_id, each.window, each.window_start_ms)
        for each in limits
    ]
    adjusting.run_once()
    for tokens in (7 * MILLION, 5 * MILLION):
        spend(stage, tenant, tokens)
        for quota in quotas:
            stage.redis.hincrby(quota, "spent_nanos", tokens * 600)
    settle(stage, tenant, MILLION)  # and waits for billing
    for quota in quotas:
        stage.redis.hincrby(quota, "spent_nanos", MILLION * 600)
    watched.add([tenant])
    adjusting.run_once()
    assert [int(stage.redis.hget(quota, "spent_nanos")) for quota in quotas] == [6_500_000_000, 7_800_000_000]
    with unit_of_work(stage.engine) as session:
        shown = [each.spent_nanos for each in spend_limits.list_limits(session, tenant)]
    assert shown == [5_900_000_000, 7_200_000_000], "what is recorded"


def test_the_quota_follows_although_the_worker_died_after_the_adjustment(stage, adjusting):
    tenant = published(stage)
    spend(stage, tenant, 12 * MILLION)
    assert runner(stage).adjust_tenant(tenant), "by a worker that dies now"
    adjusting.run_once()
    assert spent(stage, tenant) == 5_900_000_000


def test_the_quota_follows_after_redis_has_failed(stage, watched, adjusting):
    tenant = published(stage)
    adjusting.run_once()
    spend(stage, tenant, 12 * MILLION)
    watched.add([tenant])
    quota = redis_keys.tenant_quota(tenant)
    stage.redis.rename(quota, "aside")
    stage.redis.set(quota, "no quota")
    adjusting.run_once()
    assert stage.balance("usage_unbilled", tenant) == 5_900_000_000
    stage.redis.rename("aside", quota)
    adjusting.run_once()
    assert spent(stage, tenant) == 5_900_000_000


def test_the_quota_follows_an_adjustment_that_a_close_has_posted(stage, watched, adjusting):
    tenant = published(stage)
    adjusting.run_once()
    spend(stage, tenant, 12 * MILLION)
    (invoice,) = stage.close()
    assert invoice.amount_nanos == 5_900_000_000
    watched.add([tenant])
    adjusting.run_once()
    assert spent(stage, tenant) == 5_900_000_000


@pytest.mark.scenario(30)
def test_the_worker_corrects_the_quota_within_two_seconds_of_recording(
    stage, postgres_settings, redis_settings, tmp_path, promised_s
):
    tenant = published(stage)
    env = environment(postgres_settings.postgres_dsn, redis_settings.redis_url)
    with worker(env, tmp_path / "log"):
        for number, tokens in ((1, MILLION), (2, 11 * MILLION)):
            settle(stage, tenant, tokens)
            wait_until(
                lambda number=number: stage.value("SELECT count(*) FROM usage_records") == number,
                timeout_s=60,
                what=f"record {number}",
            )
        wait_until(lambda: spent(stage, tenant) == 5_900_000_000, timeout_s=promised_s(2), what="the correction")
