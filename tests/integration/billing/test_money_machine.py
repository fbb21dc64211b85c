"""Any order of use, late use, amendment, close, credit note, void, payment, refund, expiry and plan change: money adds
up at every instant, and what is final stays as it is.
"""

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.fixtures.examples import examples
from tests.fixtures.money_checks import MoneyChecks
from tests.fixtures.random_life import STEPS, RandomLife, new_world


def machine_of(engine: sa.Engine) -> type[RuleBasedStateMachine]:
    checks = MoneyChecks(engine)

    class Money(RuleBasedStateMachine):
        """Tenants of its own for each run; the checks are of all tenants of the database."""

        def __init__(self) -> None:
            super().__init__()
            self.life = RandomLife(engine, new_world(engine, tenants=2))

        @rule(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**32 - 1)), min_size=4, max_size=12))
        def live(self, steps):
            for step, seed in steps:
                self.life.take(step, seed)

        @rule(step=st.sampled_from(("use", "close", "grant", "pay")), seed=st.integers(0, 2**32 - 1))
        def do(self, step, seed):
            self.life.take(step, seed)

        @invariant()
        def money_adds_up(self):
            checks.check()

    return Money


@pytest.mark.hypothesis
@pytest.mark.timeout(900)  # all examples of `make soak`, beside other tests
@pytest.mark.scenario(90)
@pytest.mark.scenario(166)
def test_no_order_of_events_makes_money_appear_vanish_or_change(engine):
    run_state_machine_as_test(machine_of(engine), settings=examples(40, quick=4, stateful_step_count=12, deadline=None))
