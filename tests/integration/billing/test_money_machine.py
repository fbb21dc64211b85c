"""Any order of use, late use, amendment, close, credit note, void, payment, refund, expiry and plan change, with kills
of processes and of database connections: money adds up at every instant, and what is final stays as it is.
"""

import os
import random
import sys

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.conftest import wait_until
from tests.fixtures import fork_server
from tests.fixtures.examples import examples
from tests.fixtures.money_checks import MoneyChecks
from tests.fixtures.random_life import STEPS, RandomLife, command, new_world

_KILL_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


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


def hurt(engine: sa.Engine, postgres_settings, *, kills: int, seed: int) -> None:
    """Lives of several processes at once, each killed at random instants and replaced, like their connections."""
    chance, world, checks = random.Random(seed), new_world(engine), MoneyChecks(engine)
    environment = {**os.environ, "TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn}

    def live() -> fork_server.ForkedProcess:
        return fork_server.start(command(world, chance.randrange(2**32)), environment, sys.__stderr__)

    def transfers() -> int:
        with engine.connect() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM transfers").scalar_one()

    def died() -> bool:
        return any(process.poll() is not None for process in processes)

    processes = [live() for _ in range(2)]
    try:
        for _ in range(kills):
            happened, more = transfers(), chance.randint(1, 25)
            wait_until(lambda: transfers() >= happened + more or died(), timeout_s=120, what="transfers")  # noqa: B023 - at once
            assert not died(), "a life ended by itself: its error is on standard error"
            position = chance.randrange(len(processes))
            if chance.random() < 0.3:
                with engine.connect() as connection:
                    connection.exec_driver_sql(_KILL_CONNECTIONS)
            else:
                processes[position].kill()
                processes[position].wait()
                processes[position] = live()
            checks.check()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    checks.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)  # 40 starts of processes, and a check of all money after each, beside other work
@pytest.mark.scenario(164)
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_leave_money_whole(engine, postgres_settings, seed):
    hurt(engine, postgres_settings, kills=40, seed=seed)
