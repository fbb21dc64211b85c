"""A short version of ``make chaos``: kills of two processes under fifty streams, and the short rows of the matrix.

One test is functional, so that `make test` starts this platform and finds what a change of billing breaks in it.
"""

import json
import signal

import msgspec
import pytest

from core import redis_keys
from tests.chaos import fixture, kills, ledger_check, matrix
from tests.chaos.platform import PLANS, PRICES, platform
from tests.chaos.verdict import emitted, judge
from tests.conftest import create_database, wait_until


@pytest.fixture(scope="module")
def bare_platform(postgres_server, migrated_template, tmp_path_factory):
    """Billing and the stores, without a gateway."""
    database = create_database(postgres_server, "chaos", migrated_template)
    with platform(tmp_path_factory.mktemp("chaos"), database) as made:
        yield made


@pytest.fixture(scope="module")
def running_platform(bare_platform):
    fixture.prepare(bare_platform)
    return bare_platform


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["gateway", "valkey"])
def test_a_process_killed_under_fifty_streams_costs_no_tenant_anything(running_platform, victim):
    fixture.heal(running_platform)
    verdict, _ = kills.run(running_platform, kills.Kill(kills.VICTIMS[victim], seed=1), running_platform.tenant())
    verdict.check()
    assert verdict.lost == verdict.duplicated == 0
    assert verdict.requests > 0


@pytest.mark.soak
@pytest.mark.parametrize("row", [row for row in matrix.ROWS if row.short], ids=lambda row: row.id)
def test_each_quick_row_of_the_fault_matrix_holds(running_platform, row):
    assert matrix.run(running_platform, row)


@pytest.mark.soak
def test_the_verdict_finds_usage_that_was_not_billed(running_platform):
    before = frozenset(emitted(running_platform))
    with running_platform.witnesses["rep_one"].journal_path.open("a") as journal:
        journal.write(json.dumps({"request": "req_unbilled", "model": "m", "prompt": 7}) + "\n")
        journal.writelines(json.dumps({"request": "req_unbilled", "token": "x"}) + "\n" for _ in range(65))
    verdict = judge(running_platform, before)
    assert (verdict.lost, verdict.tail_tokens) == (1, 65)
    assert "req_unbilled" in verdict.problems[0]


@pytest.mark.soak
def test_a_verdict_allows_only_the_exceptions_of_its_row(running_platform):
    before = frozenset(emitted(running_platform))
    with running_platform.witnesses["rep_one"].journal_path.open("a") as journal:
        journal.write(json.dumps({"request": "req_short", "model": "m", "prompt": 7}) + "\n")
        journal.write(json.dumps({"request": "req_short", "token": "x"}) + "\n")
    assert judge(running_platform, before).problems == []
    assert "req_short" in judge(running_platform, before, crashed=frozenset()).problems[0]


def test_the_ledger_check_finds_a_counter_that_is_not_the_ledgers(bare_platform):
    bare_platform.witness("rep_alone")
    gateway, key = bare_platform.gateway("gw_alone"), bare_platform.tenant()
    wait_until(lambda: fixture.unary_calls(gateway, key, 1)[0].end == "done", what="an answer")
    tenant = bare_platform.tenants[key]
    wait_until(lambda: fixture.records(bare_platform, key), what="the bill")
    bare_platform.signal("billing", signal.SIGSTOP)  # it would repair the counters
    try:
        assert ledger_check.problems(bare_platform, ledger_check.recorded(bare_platform), [tenant]) == []
        for level in (redis_keys.tenant_quota(tenant), redis_keys.key_quota(tenant, bare_platform.key_ids[tenant])):
            for counter in ("month_used", "spent_nanos", "concurrent"):
                bare_platform.client.hincrby(level, counter, 1)
                assert len(ledger_check.problems(bare_platform, ledger_check.recorded(bare_platform), [tenant])) == 1
                bare_platform.client.hincrby(level, counter, -1)
    finally:
        bare_platform.signal("billing", signal.SIGCONT)
    for name in ("gw_alone", "rep_alone"):
        bare_platform.retire(name)
    del bare_platform.witnesses["rep_alone"]  # the rows of the matrix have replicas of their own


@pytest.mark.soak
def test_the_ledger_check_finds_a_report_of_other_tokens_and_an_amount_that_the_prices_do_not_give(
    running_platform, monkeypatch
):
    key = running_platform.tenant()
    fixture.unary_calls(running_platform.gateways["gw_one"], key, 1)
    tenant = running_platform.tenants[key]
    (record,) = wait_until(lambda: fixture.records(running_platform, key), what="the bill")
    ledger = ledger_check.recorded(running_platform)
    moved = {"input_tokens": record["input_tokens"] + 1, "output_tokens": record["output_tokens"] - 1}
    (problem,) = ledger_check.problems(running_platform, ledger | {record["request_id"]: {**record, **moved}}, [tenant])
    assert all(name in problem for name in moved), "their sum is the same"
    for name in ("input_nanos", "output_nanos", "kv_page_second_nanos"):
        dearer = msgspec.structs.replace(PRICES, **{name: 1000 + getattr(PRICES, name)})
        with monkeypatch.context() as patch:
            patch.setitem(PLANS, "pl_chaos", dearer)
            found = ledger_check.problems(running_platform, ledger_check.recorded(running_platform), [tenant])
        assert len(found) == 2
        assert all("amount" in problem for problem in found)
    assert ledger_check.problems(running_platform, ledger_check.recorded(running_platform), [tenant]) == []
