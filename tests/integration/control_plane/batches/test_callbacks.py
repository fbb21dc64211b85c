"""The callbacks of short batches: delivered and signed, without subscriptions of their own, and bounded."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook

from billing.notifications.settings import NotificationSettings
from control_plane.settings import BatchSettings, WebSettings
from tests.fixtures.control_plane.api import control_settings
from tests.fixtures.notifications.receivers import WebhookReceiver, webhook_receiver
from tests.integration.billing.notifications.conftest import NotificationStage
from tests.integration.control_plane.batches.conftest import line

ENDPOINTS = "/api/v1/notification-endpoints"
CALLBACKS_MAX = 3


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    notifications = NotificationSettings(
        notifications_key=SecretStr("key-of-the-tests"),
        notifications_allow_loopback=True,
        notifications_endpoints_max=1,
        deployment="one-machine",
    )
    return control_settings(
        postgres_settings, redis_settings, s3_settings, web=WebSettings(control_port=0, acknowledge_wait_ms=0),
        notifications=notifications, batches=BatchSettings(batch_open_max=CALLBACKS_MAX),
    )  # fmt: skip


@pytest.fixture
def hook() -> Iterator[WebhookReceiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def called(tenant):
    """Creates a short batch that calls this URL."""

    def made(url: str):
        body = {"requests": [{"model": "bot", "messages": []}], "callback_url": url}
        return tenant.http.post("/v1/batch", json=body)

    return made


def test_a_callback_is_delivered_and_signed_and_hears_of_its_batch_alone(sdk, called, begin, rounds, hook):
    made = called(hook.url).raise_for_status().json()
    other = begin(line("a"))
    rounds.run()
    assert NotificationStage(rounds.engine, 1).deliver_due() == 1
    (received,) = hook.received
    body = Webhook(made["callback_secret"]).verify(received.body, received.headers)
    assert (body["type"], body["data"]["batch_id"]) == ("batch.ended", made["batch_id"])
    assert body["data"]["output_file_id"] == sdk.batches.retrieve(made["batch_id"]).output_file_id
    assert sdk.batches.retrieve(other.id).status == "completed"
    again = called(hook.url).raise_for_status().json()
    assert again["callback_secret"] is None
    rounds.run()
    assert NotificationStage(rounds.engine, 1).deliver_due() == 1


def test_callbacks_take_no_room_of_other_endpoints_and_the_oldest_unused_one_goes(tenant, called, rounds, hook):
    urls = [f"{hook.url}?n={number}" for number in range(CALLBACKS_MAX + 2)]
    for url in urls[:CALLBACKS_MAX]:
        called(url).raise_for_status()
    assert called(urls[3]).json()["code"] == "too_many_batches"
    rounds.run()
    refused = called(urls[3])  # nothing has been delivered
    assert (refused.status_code, refused.json()["code"]) == (403, "notification_endpoint_quota_exceeded")
    NotificationStage(rounds.engine, 1).deliver_due()
    called(urls[0]).raise_for_status()
    called(urls[3]).raise_for_status()
    kept = {each["address"] for each in tenant.http.get(ENDPOINTS).json()["data"]}
    assert kept == {urls[0], urls[2], urls[3]}
    own = {"kind": "webhook", "address": f"{hook.url}?own", "event_types": []}
    assert tenant.http.post(ENDPOINTS, json=own).status_code == 201
    own["address"] += "2"
    assert tenant.http.post(ENDPOINTS, json=own).status_code == 403
