"""Notifications are written with their cause, once each, and only for endpoints that want them."""

from functools import partial

import pytest
from sqlmodel import Session

from billing.notifications import outbox
from billing.notifications.outbox import notify
from tests.fixtures.together import together
from tests.integration.billing.notifications.conftest import SPEND


def written(alerts, tenant: str) -> int:
    return alerts.row("SELECT count(*) AS n FROM notifications WHERE tenant_id = :t", t=tenant)["n"]


def test_a_notification_exists_only_if_its_cause_is_committed(alerts):
    alerts.endpoint("tn_1", "https://example.com/")
    with Session(alerts.engine) as session:
        notify(session, tenant_id="tn_1", event_type="spend.threshold_reached", data=SPEND, dedupe_key="k")
        session.rollback()
    assert (written(alerts, "tn_1"), alerts.rows("SELECT id FROM notification_deliveries")) == (0, [])


def test_one_key_is_written_once_for_each_tenant(alerts):
    endpoint, _ = alerts.endpoint("tn_1", "https://example.com/")
    assert alerts.notify("tn_1", "spend:50") is not None
    assert alerts.notify("tn_1", "spend:50", percent=80) is None
    assert alerts.notify("tn_2", "spend:50") is not None
    assert (written(alerts, "tn_1"), written(alerts, "tn_2"), len(alerts.deliveries(endpoint))) == (1, 1, 1)


def test_one_key_is_written_once_by_eight_transactions_at_once(alerts):
    endpoint, _ = alerts.endpoint("tn_1", "https://example.com/")
    found = together(*[partial(alerts.notify, "tn_1", "spend:50")] * 8)
    assert len([each for each in found if each]) == 1
    assert len(alerts.deliveries(endpoint)) == 1


def test_only_active_endpoints_of_the_tenant_that_want_the_type_get_it(alerts):
    wants_all, _ = alerts.endpoint("tn_1", "https://example.com/all")
    wants_it, _ = alerts.endpoint("tn_1", "https://example.com/it", event_types=["spend.threshold_reached"])
    alerts.endpoint("tn_1", "https://example.com/other", event_types=["balance.low"])
    alerts.endpoint("tn_1", "https://example.com/off", status="disabled", disabled_reason="tests")
    alerts.endpoint("tn_1", "new@example.com", status="unconfirmed")
    alerts.endpoint("tn_2", "https://example.com/foreign")
    alerts.notify("tn_1", "spend:50")
    found = alerts.rows("SELECT endpoint_id FROM notification_deliveries")
    assert {each["endpoint_id"] for each in found} == {wants_all, wants_it}


@pytest.mark.parametrize(
    ("event_type", "data", "says"),
    [
        ("spend.threshold", SPEND, "event_types.py"),
        ("spend.threshold_reached", {"percent": 50}, "lacks scope"),
        ("spend.threshold_reached", SPEND | {"spent_nanos": 1.5}, "fraction"),
        ("spend.threshold_reached", SPEND | {"more": [{"deep": 0.25}]}, "fraction"),
        ("spend.threshold_reached", SPEND | {"scope": "x" * 20_000}, "16384"),
        ("spend.threshold_reached", SPEND | {"scope": "a\x00b"}, "NUL"),
    ],
)
def test_data_that_cannot_be_shown_is_refused_before_anything_is_written(alerts, event_type, data, says):
    with Session(alerts.engine) as session, pytest.raises(ValueError, match=says):
        notify(session, tenant_id="tn_1", event_type=event_type, data=data, dedupe_key="k")
    assert written(alerts, "tn_1") == 0


def test_a_full_queue_takes_nothing_more_and_keeps_what_it_did_not_take(alerts, monkeypatch):
    monkeypatch.setattr(outbox, "PENDING_PER_ENDPOINT_MAX", 2)
    endpoint, _ = alerts.endpoint("tn_1", "https://example.com/")
    for number in range(3):
        alerts.notify("tn_1", f"spend:{number}")
    assert [each["state"] for each in alerts.deliveries(endpoint)] == ["pending", "pending", "failed"]
    assert alerts.deliveries(endpoint)[-1]["last_error"] == outbox.QUEUE_FULL
