"""Credit that is bought by itself, through the queue of payments."""

from datetime import timedelta
from functools import partial

import pytest

from billing.limits import spending_settings
from billing.limits.spending_runner import SpendingRunner
from billing.limits.spending_settings import SpendingPatch
from billing.limits.views import AutoTopUp
from billing.payments.top_ups import buy_if_due
from core.db import unit_of_work

DOLLAR = 1_000_000_000


@pytest.fixture
def low(stage, wallet) -> str:
    """A prepaid tenant that has asked for auto top-up and whose balance is below the floor."""
    tenant = stage.tenant()
    top_up = AutoTopUp(amount_cents=2_500, floor_nanos=5 * DOLLAR, month_cents_max=5_000)
    with unit_of_work(stage.engine) as session:
        spending_settings.change(session, tenant, SpendingPatch(mode="prepaid", auto_top_up=top_up))
    wallet.spend(tenant, 0.6)
    return tenant


@pytest.fixture
def runner(stage, wallet) -> SpendingRunner:
    """One worker, whose interval between looks has always passed."""
    return wallet.runner(buy_credit=partial(buy_if_due, stage.engine), top_ups_every=timedelta())


def bought(stage) -> list[tuple[str, int]]:
    rows = stage.rows("SELECT state, amount_cents FROM payment_charges ORDER BY created_at")
    return [(each["state"], each["amount_cents"]) for each in rows]


@pytest.mark.scenario(84)
def test_one_payment_is_queued_and_no_second_one_while_it_is_on_its_way(stage, runner, low):
    runner.run_once()
    runner.run_once()
    assert bought(stage) == [("pending", 2_500)]
    queued = stage.rows("SELECT tenant_id FROM payment_operations WHERE kind = 'charge_top_up'")
    assert [each["tenant_id"] for each in queued] == [low]


@pytest.mark.scenario(85)
def test_a_declined_payment_grants_nothing_and_is_repeated_a_day_later(stage, wallet, runner, low):
    runner.run_once()
    stage.change("UPDATE payment_charges SET state = 'failed'")
    runner.run_once()
    assert bought(stage) == [("failed", 2_500)]
    assert wallet.balance(low).balance_nanos == 0
    stage.change("UPDATE payment_charges SET created_at = created_at - interval '1 day'")
    runner.run_once()
    assert bought(stage) == [("failed", 2_500), ("pending", 2_500)]


def test_without_usage_a_low_balance_is_looked_at_once_in_an_interval(stage, wallet, low):
    runner = wallet.runner(buy_credit=partial(buy_if_due, stage.engine))
    runner.run_once()
    stage.change("UPDATE payment_charges SET state = 'paid'")
    runner.run_once()
    assert bought(stage) == [("paid", 2_500)]


@pytest.mark.scenario(86)
def test_what_an_owner_buys_by_hand_does_not_count_and_turns_nothing_on(stage, wallet, runner, low):
    stage.change(
        "INSERT INTO payment_charges (id, tenant_id, covers, amount_cents, on_page, state, created_at)"
        f" VALUES ('top_by_hand', '{low}', '{{}}', 5000, true, 'pending', now())"
    )
    runner.run_once()
    assert bought(stage) == [("pending", 5_000), ("pending", 2_500)]
    other = stage.tenant()
    wallet.grant(other, 1)
    with unit_of_work(stage.engine) as session:
        assert spending_settings.read(session, other).auto_top_up is None
