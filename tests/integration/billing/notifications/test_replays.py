"""Replays: what an endpoint has missed is sent again, in order, with the ids of the first attempts."""

from datetime import UTC, datetime

import pytest

from billing.notifications import endpoints, replays
from billing.notifications.outbox import notify
from core.db import unit_of_work
from core.errors import Conflict, NotFound
from tests.integration.billing.notifications.conftest import BOX

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def missed(alerts, endpoint: str, since: datetime = LONG_AGO, tenant: str = "tn_1"):
    with unit_of_work(alerts.engine) as session:
        return replays.replay_missed(session, tenant_id=tenant, endpoint_id=endpoint, since=since)


def activate(alerts, endpoint: str) -> None:
    with unit_of_work(alerts.engine) as session:
        endpoints.change(session, tenant_id="tn_1", endpoint_id=endpoint, event_types=None, status="active")


@pytest.mark.scenario(96)
def test_a_disabled_endpoint_is_repaired_and_gets_everything_it_missed_in_order(alerts, hook):
    endpoint, _ = alerts.endpoint("tn_1", hook.url, event_types=["spend.threshold_reached"])
    hook.status = 410
    failed = alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    unheard = [alerts.notify("tn_1", f"spend:{percent}", percent=percent) for percent in (80, 100)]
    hook.received.clear()
    hook.status = 200
    with pytest.raises(Conflict):
        missed(alerts, endpoint)
    activate(alerts, endpoint)
    assert alerts.deliver_due() == 0, "an active endpoint gets old messages only if it asks for them"
    found = missed(alerts, endpoint)
    assert (found.queued, found.more) == (3, False)
    alerts.deliver_due()
    assert hook.ids == [failed, *unheard]
    assert missed(alerts, endpoint).queued == 0
    assert {each["state"] for each in alerts.deliveries(endpoint)} == {"delivered"}


def test_a_replay_of_many_goes_in_pages(alerts, hook, monkeypatch):
    monkeypatch.setattr(replays, "REPLAY_MAX", 2)
    sent = [alerts.notify("tn_1", f"spend:{number}") for number in range(5)]
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    pages = [missed(alerts, endpoint) for _ in range(3)]
    assert [(each.queued, each.more) for each in pages] == [(2, True), (2, True), (1, False)]
    alerts.deliver_due()
    assert hook.ids == sent


def test_a_replay_fills_a_queue_only_up_to_its_limit(alerts, hook, monkeypatch):
    monkeypatch.setattr(replays, "PENDING_PER_ENDPOINT_MAX", 3)
    for number in range(5):
        alerts.notify("tn_1", f"spend:{number}")
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    found = [missed(alerts, endpoint) for _ in range(2)]
    assert [(each.queued, each.more) for each in found] == [(3, True), (0, True)]
    alerts.deliver_due()
    assert (missed(alerts, endpoint).queued, len(alerts.deliveries(endpoint))) == (2, 5)


def test_a_replay_leaves_out_other_types_other_tenants_older_messages_and_test_messages(alerts, hook):
    alerts.notify("tn_1", "spend:old")
    since = alerts.row("SELECT clock_timestamp() AS now")["now"]
    wanted = alerts.notify("tn_1", "spend:50")
    alerts.notify("tn_1", "low:1", "balance.low", balance_nanos=1, floor_nanos=2)
    alerts.notify("tn_2", "spend:50")
    elsewhere, _ = alerts.endpoint("tn_1", hook.url + "/elsewhere", event_types=["balance.low"])
    with unit_of_work(alerts.engine) as session:
        data = {"endpoint_id": elsewhere}
        notify(session, tenant_id="tn_1", event_type="endpoint.test", data=data, dedupe_key="t", endpoint_id=elsewhere)
    alerts.deliver_due()
    hook.received.clear()
    endpoint, _ = alerts.endpoint("tn_1", hook.url, event_types=["spend.threshold_reached"])
    assert missed(alerts, endpoint, since).queued == 1
    alerts.deliver_due()
    assert hook.ids == [wanted]
    with pytest.raises(NotFound):
        missed(alerts, endpoint, tenant="tn_2")


def test_a_delivered_message_can_be_sent_again_with_its_id_and_new_retries(alerts, hook):
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    notification = alerts.notify("tn_1", "spend:50")
    alerts.deliver_due()
    delivery = alerts.deliveries(endpoint)[0]["id"]
    alerts.pass_time(days=30)
    hook.status = 500
    with unit_of_work(alerts.engine) as session:
        assert replays.replay(session, tenant_id="tn_1", delivery_id=delivery).state == "pending"
    alerts.offset *= 0  # a replay counts from Postgres's own time
    alerts.live_through(minutes=2)
    row = alerts.deliveries(endpoint)[0]
    assert row["state"] == "pending"
    assert row["attempts"] > 4
    hook.status = 200
    alerts.live_through(hours=2)
    assert set(hook.ids) == {notification}
    assert alerts.deliveries(endpoint)[0]["state"] == "delivered"


def test_a_deleted_endpoint_forgets_its_secrets_and_gets_nothing_more(alerts, hook):
    endpoint, _ = alerts.endpoint("tn_1", hook.url)
    alerts.notify("tn_1", "spend:50")
    with unit_of_work(alerts.engine) as session:
        endpoints.rotate_secret(session, BOX, tenant_id="tn_1", endpoint_id=endpoint, overlap_s=60)
        endpoints.delete(session, tenant_id="tn_1", endpoint_id=endpoint)
    alerts.notify("tn_1", "spend:80")
    assert alerts.deliver_due() == 0
    state = alerts.state(endpoint)
    assert (state["status"], state["signing_secret"], state["previous_secret"]) == ("deleted", None, None)
    assert [each["last_error"] for each in alerts.deliveries(endpoint)] == ["the endpoint is deleted"]
    alerts.endpoint("tn_1", hook.url)
