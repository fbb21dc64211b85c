"""Files and batches through OpenAI's own SDK, and what the API refuses."""

import json
import socket

import openai
import pytest
from pydantic import SecretStr

from billing.notifications.settings import NotificationSettings
from control_plane.settings import BatchSettings, WebSettings
from tests.fixtures.control_plane.api import control_settings
from tests.integration.control_plane.batches.conftest import CHAT, jsonl, line

HALF_A_FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nhalf'
FORM_HEADERS = {"content-type": "multipart/form-data; boundary=x"}
SMALL = BatchSettings(batch_file_bytes_max=5_000, batch_stored_bytes_max=12_000, batch_open_max=2, batch_file_s=3)


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    notifications = NotificationSettings(notifications_key=SecretStr("key-of-the-tests"), notifications_resolve_ms=200)
    web = WebSettings(control_port=0, acknowledge_wait_ms=0)
    return control_settings(
        postgres_settings, redis_settings, s3_settings, web=web, notifications=notifications, batches=SMALL
    )


def test_the_life_of_a_file(sdk):
    content = jsonl(line("a"), line("b"))
    made = sdk.files.create(file=("input.jsonl", content), purpose="batch")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(content), "input.jsonl", "batch")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert sdk.files.retrieve(made.id) == made
    assert sdk.files.content(made.id).read() == content
    other = sdk.files.create(file=("other.jsonl", content), purpose="batch")
    assert [each.id for each in sdk.files.list()] == [other.id, made.id]
    assert [each.id for each in sdk.files.list(limit=1, order="asc", purpose="batch")] == [made.id, other.id]
    assert sdk.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError) as absent:
        sdk.files.content(made.id)
    assert absent.value.code == "file_not_found"
    assert [each.id for each in sdk.files.list()] == [other.id]


def test_a_batch_is_made_listed_read_and_cancelled(sdk, begin):
    made = begin(line("a"), metadata={"team": "support"})
    assert (made.object, made.status, made.endpoint, made.completion_window) == ("batch", "validating", CHAT, "24h")
    assert made.expires_at == made.created_at + 86_400
    assert made.metadata == {"team": "support"}
    assert (made.service_class, made.cost_nanos, made.paused) == ("batch", 0, False)
    second = begin(line("b"))
    assert [each.id for each in sdk.batches.list(limit=1)] == [second.id, made.id]
    assert sdk.batches.cancel(made.id).status == "cancelling"
    assert sdk.batches.cancel(made.id).status == "cancelling"
    assert sdk.batches.retrieve(made.id).cancelling_at is not None


def test_another_tenants_file_and_batch_are_as_absent_as_none(api, sdk_of, sdk, begin):
    theirs, stranger = begin(line("a")), sdk_of(api.tenant())
    calls = [
        lambda each: stranger.files.retrieve(each.input_file_id),
        lambda each: stranger.files.content(each.input_file_id),
        lambda each: stranger.files.delete(each.input_file_id),
        lambda each: stranger.batches.retrieve(each.id),
        lambda each: stranger.batches.cancel(each.id),
        lambda each: stranger.batches.create(
            input_file_id=each.input_file_id, endpoint=CHAT, completion_window="24h"
        ),
    ]  # fmt: skip
    absent = theirs.model_copy(update={"id": theirs.id[:-4] + "none", "input_file_id": "file_none"})
    for call in calls:
        answers = []
        for each in (theirs, absent):
            with pytest.raises(openai.NotFoundError) as refused:
                call(each)
            answers.append(refused.value.body)
        assert answers[0] == answers[1]
    assert stranger.batches.list().data == []
    assert stranger.files.list().data == []


def test_a_file_that_a_batch_reads_is_not_deleted_under_it(sdk, begin):
    batch = begin(line("a"))
    with pytest.raises(openai.ConflictError) as refused:
        sdk.files.delete(batch.input_file_id)
    assert refused.value.code == "file_in_use"
    assert batch.id in refused.value.message


@pytest.mark.parametrize(
    ("form", "status", "code", "param"),
    [
        ({"data": {"purpose": "fine-tune"}, "files": {"file": ("a", b"x")}}, 400, "invalid_value", "purpose"),
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, 400, "unknown_field", "other"),
        ({"data": {"purpose": "batch", "x": "1"}, "files": {"file": ("a", b"x")}}, 400, "unknown_field", "x"),
        ({"data": {"purpose": "batch"}, "files": {"file": ("a", b"")}}, 400, "empty_file", "file"),
        ({"data": {"purpose": "batch"}, "files": {"file": ("a", b"x" * 6_000)}}, 413, "file_too_large", "file"),
        ({"data": {"purpose": "x" * 5_000}, "files": {"file": ("a", b"x")}}, 400, "invalid_value", "purpose"),
        ({"json": {"purpose": "batch"}}, 415, "format_not_allowed", "content-type"),
        ({"content": HALF_A_FORM, "headers": FORM_HEADERS}, 400, "invalid_form", None),
    ],
)  # fmt: skip
def test_a_bad_upload_is_refused_in_openais_format_and_stores_nothing(tenant, form, status, code, param):
    answer = tenant.http.post("/v1/files", **form)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]
    assert tenant.http.get("/v1/files").json()["data"] == []


def test_a_file_that_does_not_arrive_in_time_is_refused_in_openais_format(api, tenant):
    head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {tenant.key}\r\ncontent-length: 900\r\n"
    form = "content-type: multipart/form-data; boundary=x\r\n\r\n"
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + form.encode() + HALF_A_FORM)
        answer = connection.recv(65_536)
    assert b" 408 " in answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["message"]) == ("request_timeout", "The file did not arrive within 3 s.")


def test_what_a_tenant_stores_and_runs_is_bounded(sdk, begin):
    begin(line("a"))
    begin(line("b"))
    with pytest.raises(openai.RateLimitError) as many:
        begin(line("c"))
    assert many.value.code == "too_many_batches"
    for number in range(2):
        sdk.files.create(file=(f"{number}.jsonl", b"x" * 4_000), purpose="batch")
    with pytest.raises(openai.PermissionDeniedError) as full:
        sdk.files.create(file=("more.jsonl", b"x" * 4_000), purpose="batch")
    assert full.value.code == "file_quota_exceeded"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"completion_window": "1h"}, "completion_window"),
        ({"endpoint": "/v1/responses"}, "endpoint"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {}}, "output_expires_after"),
    ],
)
def test_a_bad_batch_is_refused_with_its_field(tenant, sdk, changes, param):
    file = sdk.files.create(file=("input.jsonl", jsonl(line("a"))), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changes
    answer = tenant.http.post("/v1/batches", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


def test_the_short_form_makes_a_file_and_a_batch(sdk, tenant):
    requests = [{"model": "bot", "messages": [{"role": "user", "content": str(n)}]} for n in range(3)]
    key = {"idempotency-key": "once"}
    made, again = [tenant.http.post("/v1/batch", json={"requests": requests}, headers=key).json() for _ in range(2)]
    assert made.keys() == {"batch_id", "estimated_completion", "callback_secret"}
    assert again["batch_id"] == made["batch_id"]
    batch = sdk.batches.retrieve(made["batch_id"])
    (file,) = sdk.files.list().data
    assert batch.input_file_id == file.id
    assert b'"custom_id":"request-3"' in sdk.files.content(file.id).read()


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"requests": [{"model": "b"}, {"model": "b", "stream": True}]}, "stream_not_allowed", "requests[1].stream"),
        ({"requests": [{}]}, "missing_model", "requests[0].model"),
        ({"requests": []}, "invalid_value", "requests"),
        ({"priority": "urgent"}, "invalid_value", "priority"),
        ({"callback_url": "http://example.com/"}, "invalid_webhook_address", "callback_url"),
        ({"callback_url": "https://127.0.0.1/"}, "webhook_address_not_public", "callback_url"),
        ({"callback_url": "https://169.254.169.254/latest"}, "webhook_address_not_public", "callback_url"),
        ({"callback_url": "https://[fd00::1]/"}, "webhook_address_not_public", "callback_url"),
    ],
)  # fmt: skip
def test_a_bad_short_batch_is_refused_and_leaves_nothing(tenant, changes, code, param):
    answer = tenant.http.post("/v1/batch", json={"requests": [{"model": "bot"}]} | changes)
    assert answer.status_code in (400, 422), answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    for path in ("/v1/files", "/v1/batches", "/api/v1/notification-endpoints"):
        assert tenant.http.get(path).json()["data"] == []


def test_a_key_without_the_scope_inference_is_refused(api, tenant):
    made = tenant.http.post("/api/v1/api-keys", json={"scopes": ["usage:read"]}).json()
    refused = api.client(made["key"]).get("/v1/batches")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "scope_missing"


def test_an_admin_pauses_all_batches(api, sdk, begin):
    batch = begin(line("a"))
    path = "/api/v1/admin/batches/pause"
    paused = api.admin.put(path, json={"reason": "an incident"}).raise_for_status().json()
    assert (paused["paused"], paused["reason"]) == (True, "an incident")
    assert sdk.batches.retrieve(batch.id).paused
    assert api.admin.get(path).json() == paused
    assert api.admin.delete(path).raise_for_status().json()["paused"] is False
    assert not sdk.batches.retrieve(batch.id).paused
