"""Answers to changes wait for gateways, and say so when one does not acknowledge in time."""

import json

import pytest

from control_plane.acknowledged_answers import AcknowledgedAnswers
from control_plane.publishing import request_changes
from control_plane.publishing.gateway_ack import Acknowledgement
from control_plane.publishing.models import OutboxChange


class Waiter:
    def __init__(self, *, acknowledged: bool) -> None:
        self.acknowledged = acknowledged
        self.awaited: list[list[int]] = []

    async def wait(self, change_ids: list[int]) -> Acknowledgement:
        self.awaited.append(change_ids)
        return Acknowledgement(acknowledged=self.acknowledged, gateways=2, waited_ms=7)


async def ask(waiter: Waiter, *, rows=(5, 6), method="POST", path="/api/v1/api-keys", status=201, body=b'{"id":"k"}'):
    """The (status, headers, body) of an answer whose request records these changes."""

    async def app(_scope, _receive, send):
        for row in rows:
            request_changes.note(OutboxChange(id=row, kind="keys", field="x"))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body[:3], "more_body": True})
        await send({"type": "http.response.body", "body": body[3:], "more_body": False})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path}
    await AcknowledgedAnswers(app, waiter)(scope, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(part["body"] for part in sent[1:])


async def test_an_acknowledged_change_is_answered_as_usual():
    waiter = Waiter(acknowledged=True)
    status, headers, body = await ask(waiter)
    assert (status, waiter.awaited) == (201, [[6]])
    assert json.loads(body) == {"id": "k", "acknowledged": True, "gateways": 2, "waited_ms": 7}
    assert headers[b"content-length"] == b"%d" % len(body)


@pytest.mark.parametrize(
    ("path", "url"),
    [("/api/v1/api-keys", "/api/v1/changes/6"), ("/api/v1/admin/tenants/t", "/api/v1/admin/changes/6")],
)
async def test_a_change_that_a_gateway_does_not_acknowledge_is_202_with_a_url_to_poll(path, url):
    status, _, body = await ask(Waiter(acknowledged=False), path=path)
    assert status == 202
    assert json.loads(body) == {"id": "k", "acknowledged": False, "gateways": 2, "waited_ms": 7, "poll_url": url}


async def test_an_answer_without_a_body_stays_empty_when_all_acknowledge():
    assert (await ask(Waiter(acknowledged=True), method="DELETE", status=204, body=b""))[::2] == (204, b"")
    status, headers, body = await ask(Waiter(acknowledged=False), method="DELETE", status=204, body=b"")
    assert (status, json.loads(body)["acknowledged"]) == (202, False)
    assert headers[b"content-type"] == b"application/json"


@pytest.mark.parametrize("options", [{"rows": ()}, {"status": 409}, {"method": "GET"}])
async def test_refusals_and_answers_without_changes_do_not_wait(options):
    waiter = Waiter(acknowledged=False)
    status, _, body = await ask(waiter, **options)
    assert (status, body, waiter.awaited) == (options.get("status", 201), b'{"id":"k"}', [])
