"""Usage moves from the stream to the ledger once, even if events arrive twice, late, broken or without a price."""

import msgspec
import pytest

from billing.settings import BillingSettings
from billing.usage.metering import OUTAGES, Meter
from core import redis_keys


def test_an_event_becomes_a_record_and_a_transfer_at_the_tenants_prices(stage):
    tenant = stage.tenant()
    event = stage.event(tenant, adapter_id="ad_1", revision_id="rev_1", outcome="client_gone")
    stage.bill(event)
    (row,) = stage.rows("SELECT * FROM usage_records")
    assert row["input_nanos"] == 68 * 150
    assert row["cached_input_nanos"] == 32 * 75
    assert row["output_nanos"] == 20 * 600
    assert row["kv_nanos"] == 1_601
    assert row["amount_nanos"] == 68 * 150 + 32 * 75 + 20 * 600 + 1_601
    assert (row["adapter_id"], row["revision_id"], row["outcome"]) == ("ad_1", "rev_1", "client_gone")
    assert int(row["settled_at"].timestamp() * 1000) == event.settled_at_ms
    assert stage.balance("usage_unbilled", tenant) == row["amount_nanos"]
    assert stage.balance("revenue") == -row["amount_nanos"]
    assert stage.pending == 0


def test_the_same_event_again_changes_nothing(stage):
    event = stage.event(stage.tenant())
    stage.bill(event)
    stage.bill(event, event)
    assert stage.value("SELECT count(*) FROM usage_records") == 1
    assert stage.value("SELECT count(*) FROM entries") == 2
    assert stage.pending == 0
    assert stage.dead_letters() == []


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (b"{", b"undecodable"),
        ({"input_tokens": -1}, b"impossible"),
        ({"settled_at_ms": 1_000_000_000_000}, b"too_late"),
        ({"key_id": "nul\x00"}, b"unstorable"),
    ],
)
def test_a_poison_event_is_dead_lettered_after_its_attempts_and_blocks_no_other(stage, broken, code):
    tenant = stage.tenant()
    if isinstance(broken, dict):
        broken = msgspec.json.encode(stage.event(tenant, **{"started_at_ms": 1, **broken}))
    good = [stage.event(tenant) for _ in range(5)]
    stage.bill(*good[:3], broken, *good[3:])
    assert stage.value("SELECT count(*) FROM usage_records") == 5
    assert stage.pending == 1
    assert stage.dead_letters() == []
    stage.retry_pending()
    assert stage.pending == 1
    stage.retry_pending()
    assert stage.pending == 0
    (letter,) = stage.dead_letters()
    assert letter[b"event"] == broken
    assert letter[b"code"] == code
    assert letter[b"attempts"] == b"3"
    assert letter[b"reason"]


def test_usage_without_a_price_waits_and_is_billed_once_there_is_one(stage):
    stage.bill(stage.event("tn_unpriced"))
    assert stage.value("SELECT count(*) FROM usage_records") == 0
    assert stage.pending == 1
    priced = stage.tenant()
    stage.change(
        "INSERT INTO plan_assignments VALUES ('tn_unpriced', '1970-01-01Z', :plan, now())", plan=stage.plan_of(priced)
    )
    stage.retry_pending()
    assert stage.value("SELECT count(*) FROM usage_records WHERE amount_nanos > 0") == 1
    assert stage.pending == 0


def test_usage_that_never_gets_a_price_is_dead_lettered_and_can_be_redriven(stage):
    stage.bill(stage.event("tn_unpriced"))
    for _ in range(stage.settings.billing_unpriced_attempts_max - 1):
        stage.retry_pending()
    assert stage.dead_letters()[0][b"code"] == b"unpriced"
    assert stage.reconcile().dead_letters == 1
    assert stage.stream.redrive(count=10) == 1
    assert stage.stream.redrive(count=10) == 0
    assert stage.dead_letters() == []
    assert stage.reconcile().unprocessed_events == 1


def test_poison_stays_pending_when_the_dead_letters_are_full(stage):
    stage.meter = Meter(stage.engine, stage.stream, BillingSettings(billing_attempts_max=1, billing_dead_letters_max=1))
    stage.bill(b"first", b"second")
    assert len(stage.dead_letters()) == 1
    assert stage.pending == 1


def test_two_workers_dead_letter_the_same_event_once(stage):
    stage.publish(b"poison")
    (entry,) = stage.stream.read(count=1, block_ms=None)
    for _ in range(2):
        assert stage.stream.dead_letter(entry, about={"code": "undecodable"}, dead_letters_max=10)
    assert len(stage.dead_letters()) == 1


def test_nothing_is_acknowledged_while_the_database_fails(stage):
    stage.publish(stage.event(stage.tenant()))
    entries = stage.stream.read(count=10, block_ms=None)
    stage.change("ALTER TABLE entries RENAME TO entries_away")
    with pytest.raises(OUTAGES):
        stage.meter.process(entries)
    assert stage.pending == 1
    stage.change("ALTER TABLE entries_away RENAME TO entries")
    stage.meter.process(entries)
    assert stage.pending == 0
    assert stage.value("SELECT count(*) FROM usage_records") == 1


def test_the_stream_keeps_unacknowledged_entries_and_drops_the_rest(stage):
    tenant = stage.tenant()
    stage.bill(*(stage.event(tenant) for _ in range(10)))
    (poison,) = stage.publish(b"poison")
    stage.bill(*(stage.event(tenant) for _ in range(10)))
    unread = stage.publish(stage.event(tenant), stage.event(tenant))
    assert stage.stream.trim() == 10
    kept = [entry_id for entry_id, _ in stage.redis.xrange(redis_keys.USAGE_STREAM)]
    assert kept[0] == poison
    assert kept[-2:] == unread
    stage.drain()
    for _ in range(2):
        stage.retry_pending()
    stage.stream.trim()
    assert stage.redis.xlen(redis_keys.USAGE_STREAM) == 1  # the last delivered entry
    assert stage.reconcile().unprocessed_events == 0


def test_another_group_on_the_stream_stops_the_trimming(stage):
    stage.redis.xgroup_create(redis_keys.USAGE_STREAM, "auditor", id="0")
    stage.bill(stage.event(stage.tenant()), stage.event(stage.tenant()))
    assert stage.stream.trim() == 0
    assert stage.redis.xlen(redis_keys.USAGE_STREAM) == 2


def test_entries_that_vanish_while_pending_are_reported(stage):
    (poison,) = stage.publish(b"poison")
    stage.drain()
    stage.redis.xdel(redis_keys.USAGE_STREAM, poison)
    assert stage.retry_pending().lost == [poison]


def test_the_backlog_is_counted_even_if_redis_lost_its_lag(stage):
    ids = stage.publish(*(b"%d" % number for number in range(7)))
    stage.stream.read(count=2, block_ms=None)
    stage.redis.xdel(redis_keys.USAGE_STREAM, ids[4])
    report = stage.reconcile()
    assert report.unprocessed_events == 2 + 4
