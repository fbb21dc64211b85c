"""Any order of granting, spending, late usage, expiry, refunds, voids and invoices: the ledger sums to zero, each
balance is the fold of its entries and never negative, and what is shown is the ledger's less what usage will take.
"""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from billing.charges.inputs import period_start
from billing.charges.period import adjust
from billing.credits import burning, lots
from billing.subscriptions.billed_until import advance_billed_until, lock_billed_until
from core.db import unit_of_work
from core.errors import AppError, Conflict
from core.ids import new_id
from core.money import round_to_cents
from core.periods import Period
from tests.fixtures.examples import examples
from tests.fixtures.wallet import Wallet
from tests.integration.billing.conftest import Stage

HOURS = st.integers(1, 60)
MODELS = st.sampled_from(["small", "large"])


class CreditMachine(RuleBasedStateMachine):
    """Plays admins, usage and the close for one tenant. Nothing happens in the future: hours are hours ago."""

    stage: Stage

    @initialize()
    def begin(self) -> None:
        self.wallet = Wallet(self.stage)
        self.tenant = self.stage.tenant()
        self.now = self.stage.now().replace(microsecond=0)
        self.lots: list[str] = []
        self.spent = False

    @rule(
        cents=st.integers(1, 300), kind=st.sampled_from(["paid", "promotional"]), priority=st.integers(0, 2),
        begins=HOURS, lasts=st.none() | HOURS, minutes=st.integers(0, 59),
        models=st.sampled_from([[], ["small"], ["large"]]),
    )  # fmt: skip
    def grant(self, cents, kind, priority, begins, lasts, minutes, models):
        start = self.now - timedelta(hours=begins, minutes=minutes)
        ends = None if lasts is None else start + timedelta(hours=lasts)
        self.lots.append(
            self.wallet.granted(
                self.tenant,
                cents / 100,
                kind=kind,
                priority=priority,
                effective_from=start,
                expires_at=ends,
                models=models,
            )
        )

    @rule(cents=st.integers(1, 200), hours=HOURS, minutes=st.integers(0, 59), model=MODELS)
    def spend(self, cents, hours, minutes, model):
        at = self.now - timedelta(hours=hours, minutes=minutes)
        tokens = cents * 10_000_000 // 600 or 1
        self.wallet.spend(self.tenant, tokens * 600 / 1_000_000_000, at=at, base_model=model)
        self.spent = True

    @precondition(lambda self: self.lots)
    @rule(which=st.integers(0, 100), cents=st.integers(1, 300))
    def refund(self, which, cents):
        lot_id = self.lots[which % len(self.lots)]
        shown = self.wallet.lot(self.tenant, lot_id)
        try:
            with unit_of_work(self.stage.engine) as session:
                lots.refund_unspent(session, tenant_id=self.tenant, lot_id=lot_id, amount_nanos=cents * 10_000_000)
        except AppError:
            assert shown.kind == "promotional" or shown.balance_nanos < cents * 10_000_000
        else:
            after = self.wallet.lot(self.tenant, lot_id)
            assert shown.balance_nanos - after.balance_nanos == cents * 10_000_000

    @precondition(lambda self: self.lots)
    @rule(which=st.integers(0, 100))
    def void(self, which):
        lot_id = self.lots[which % len(self.lots)]
        shown_before = self.wallet.lot(self.tenant, lot_id).balance_nanos
        try:
            with unit_of_work(self.stage.engine) as session:
                lots.void_unspent(session, tenant_id=self.tenant, lot_id=lot_id)
        except Conflict:
            assert shown_before == 0
        assert self.wallet.lot(self.tenant, lot_id).balance_nanos == 0

    @rule()
    def lapse(self):
        self.wallet.lapse(self.tenant)
        assert self.wallet.lapse(self.tenant) == 0

    @precondition(lambda self: self.spent)
    @rule(hours=st.integers(0, 40), tax_percent=st.sampled_from([0, 19]))
    def close(self, hours, tax_percent):
        until = self.now - timedelta(hours=hours)
        before = self.wallet.balance(self.tenant)
        with unit_of_work(self.stage.engine) as session:
            start = period_start(session, self.tenant, lock_billed_until(session, self.tenant))
            if start is None or start >= until:
                return
            period, invoice_id = Period(start, until), new_id("inv")
            lines, _ = adjust(session, self.tenant, period)
            uses = burning.apply_promotional(session, self.tenant, period, lines, invoice_id=invoice_id)
            net = sum(line.amount_nanos for line in lines) - sum(use.amount_nanos for use in uses)
            due = round_to_cents(net) * (100 + tax_percent) // 100
            paid = burning.apply_paid(session, self.tenant, period, lines, invoice_id=invoice_id, due_cents=due)
            assert 0 <= paid <= due
            advance_billed_until(session, self.tenant, until)
        after = self.wallet.balance(self.tenant)
        assert after.pending_nanos <= before.pending_nanos
        if not tax_percent:
            # An invoice takes what was pending. It is in whole cents, so a lot may give or keep up to a cent more.
            assert abs(after.balance_nanos - before.balance_nanos) < 10_000_000 * (1 + len(self.lots))

    @invariant()
    def the_ledger_is_whole_and_nothing_is_negative(self):
        if not hasattr(self, "wallet"):
            return
        self.wallet.check()
        shown = self.wallet.balance(self.tenant)
        assert shown.balance_nanos >= 0
        assert all(lot.balance_nanos >= 0 and lot.lapsed_nanos >= 0 for lot in shown.lots)
        for lot in shown.lots:
            assert lot.amount_nanos == (
                lot.balance_nanos + lot.pending_nanos + lot.invoiced_nanos + lot.lapsed_nanos + lot.refunded_nanos
                + lot.voided_nanos
            ), lot  # fmt: skip


@pytest.mark.scenario(90)
@pytest.mark.hypothesis
def test_any_order_of_credit(stage):
    CreditMachine.stage = stage
    run_state_machine_as_test(
        CreditMachine,
        settings=examples(60, quick=6, stateful_step_count=15, suppress_health_check=list(HealthCheck)),
    )
