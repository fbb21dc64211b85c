"""A short version of ``make chaos``: kills of two processes under fifty streams, and the short rows of the matrix."""

import json

import msgspec
import pytest

from core import redis_keys
from tests.chaos import fixture, kills, ledger_check, matrix
from tests.chaos.platform import PLANS, PRICES, platform
from tests.chaos.verdict import emitted, judge
from tests.conftest import create_database, wait_until

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def furnished(postgres_server, migrated_template, tmp_path_factory):
    database = create_database(postgres_server, "chaos", migrated_template)
    with platform(tmp_path_factory.mktemp("chaos"), database) as made:
        fixture.prepare(made)
        yield made


@pytest.mark.parametrize("victim", ["gateway", "valkey"])
def test_a_process_killed_under_fifty_streams_costs_no_tenant_anything(furnished, victim):
    fixture.heal(furnished)
    verdict, _ = kills.run(furnished, kills.Kill(kills.VICTIMS[victim], seed=1), furnished.tenant())
    verdict.check()
    assert verdict.lost == verdict.duplicated == 0
    assert verdict.requests > 0


@pytest.mark.parametrize("row", [row for row in matrix.ROWS if row.short], ids=lambda row: row.id)
def test_each_quick_row_of_the_fault_matrix_holds(furnished, row):
    assert matrix.run(furnished, row)


def test_the_verdict_finds_usage_that_was_not_billed(furnished):
    before = frozenset(emitted(furnished))
    with furnished.witnesses["rep_one"].journal_path.open("a") as journal:
        journal.write(json.dumps({"request": "req_unbilled", "model": "m", "prompt": 7}) + "\n")
        journal.writelines(json.dumps({"request": "req_unbilled", "token": "x"}) + "\n" for _ in range(65))
    verdict = judge(furnished, before)
    assert (verdict.lost, verdict.tail_tokens) == (1, 65)
    assert "req_unbilled" in verdict.problems[0]


def test_the_verdict_allows_a_row_only_what_it_asks_for(furnished):
    before = frozenset(emitted(furnished))
    with furnished.witnesses["rep_one"].journal_path.open("a") as journal:
        journal.write(json.dumps({"request": "req_short", "model": "m", "prompt": 7}) + "\n")
        journal.write(json.dumps({"request": "req_short", "token": "x"}) + "\n")
    assert judge(furnished, before).problems == []
    assert "req_short" in judge(furnished, before, crashed=frozenset()).problems[0]


def test_the_ledger_check_finds_a_counter_that_is_not_the_ledgers(furnished):
    key = furnished.tenant()
    fixture.whole(furnished.gateways["gw_one"], key, 1)
    tenant = furnished.tenants[key]
    wait_until(lambda: fixture.records(furnished, key), what="the bill")
    assert ledger_check.problems(furnished, ledger_check.recorded(furnished), [tenant]) == []
    for level in (redis_keys.tenant_quota(tenant), redis_keys.key_quota(tenant, furnished.key_ids[tenant])):
        for counter in ("month_used", "spent_nanos", "concurrent"):
            furnished.client.hincrby(level, counter, 1)
            assert len(ledger_check.problems(furnished, ledger_check.recorded(furnished), [tenant])) == 1
            furnished.client.hincrby(level, counter, -1)


def test_the_ledger_check_finds_a_report_of_other_tokens_and_an_amount_that_the_prices_do_not_give(
    furnished, monkeypatch
):
    key = furnished.tenant()
    fixture.whole(furnished.gateways["gw_one"], key, 1)
    tenant = furnished.tenants[key]
    (record,) = wait_until(lambda: fixture.records(furnished, key), what="the bill")
    ledger = ledger_check.recorded(furnished)
    moved = {"input_tokens": record["input_tokens"] + 1, "output_tokens": record["output_tokens"] - 1}
    (said,) = ledger_check.problems(furnished, ledger | {record["request_id"]: {**record, **moved}}, [tenant])
    assert all(name in said for name in moved), "their sum is the same"
    for name in ("input_nanos", "output_nanos", "kv_page_second_nanos"):
        dearer = msgspec.structs.replace(PRICES, **{name: 1000 + getattr(PRICES, name)})
        with monkeypatch.context() as patch:
            patch.setitem(PLANS, "pl_chaos", dearer)
            found = ledger_check.problems(furnished, ledger_check.recorded(furnished), [tenant])
        assert len(found) == 2
        assert all("amount" in said for said in found)
    assert ledger_check.problems(furnished, ledger_check.recorded(furnished), [tenant]) == []
