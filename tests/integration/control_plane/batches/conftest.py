"""Batches over the API, with OpenAI's own SDK, and the loops that run them on a real Postgres and S3."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import openai
import pytest
import sqlalchemy as sa

from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from control_plane.batches import worker
from control_plane.batches.ending import end_one
from control_plane.batches.open_batch import LineTry
from control_plane.batches.sending import LineAnswer, read_answer
from control_plane.batches.settings import BatchWorkerSettings
from control_plane.batches.validator import check_one
from control_plane.batches.worker import BatchWorker
from control_plane.settings import BatchSettings
from tests.conftest import TLS, wait_until
from tests.fixtures.control_plane.api import Api, Tenant

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}


def line(custom_id: str, *, model: str = "bot", url: str = CHAT, **body: object) -> dict:
    messages = [{"role": "user", "content": f"about {custom_id}"}]
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": model, "messages": messages} | body}


def jsonl(*lines: dict) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def read(sdk: openai.OpenAI, file_id: str | None) -> dict[str, dict]:
    """The lines of an output or error file, by their custom ids; nothing without a file."""
    if file_id is None:
        return {}
    found = [json.loads(each) for each in sdk.files.content(file_id).read().splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


@pytest.fixture
def sdk_of(api: Api) -> Iterator[Callable[[Tenant], openai.OpenAI]]:
    clients = []

    def made(tenant: Tenant) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(verify=TLS)
        clients.append(openai.OpenAI(base_url=f"{api.url}/v1", api_key=tenant.key, max_retries=0, http_client=http))
        return clients[-1]

    yield made
    for client in clients:
        client.close()


@pytest.fixture
def tenant(api: Api) -> Tenant:
    return api.tenant()


@pytest.fixture
def sdk(sdk_of, tenant) -> openai.OpenAI:
    return sdk_of(tenant)


def refusal(status: int, code: str, *, final: bool = False) -> LineAnswer:
    body = json.dumps({"error": {"code": code, "message": f"It is {code}."}}).encode()
    return LineAnswer(status, body, code=code, message=f"It is {code}.", retry_after_s=0.1, final=final)


class Sent(NamedTuple):
    """A line as it was sent."""

    batch_id: str
    line: int
    custom_id: str
    endpoint: str
    request_id: str
    service_class: str
    body: bytes
    is_paid: bool
    only_stored: bool


@dataclass
class FakeGateway:
    """Answers lines as a gateway would; ``refuse`` may answer instead. It notes what it was asked, and what it ran."""

    received: list[Sent] = field(default_factory=list)
    refuse: Callable[[Sent], LineAnswer | None] = lambda _: None
    stored: set[str] = field(default_factory=set)  # custom ids

    def send(self, line: LineTry) -> LineAnswer:
        row, plan = line.batch.row, line.plan
        request = Sent(
            row.id, plan.line, plan.custom_id, row.endpoint, line.request_id, row.service_class, line.body,
            line.is_paid, line.only_stored,
        )  # fmt: skip
        self.received.append(request)
        refused = self.refuse(request)
        if refused is None and line.only_stored and request.custom_id not in self.stored:
            refused = refusal(409, "request_not_run", final=True)
        if refused is not None:
            return refused
        self.stored.add(request.custom_id)
        body = json.dumps({"object": "chat.completion", "usage": USAGE}).encode()
        return read_answer(200, {"x-tenora-price-nanos": "7"}, body)

    def asked(self) -> list[str]:
        return [request.custom_id for request in self.received]


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@dataclass
class Rounds:
    """The loops of a batch process, run by the test."""

    engine: sa.Engine
    bucket: Bucket
    gateway: FakeGateway
    limits: BatchSettings = field(default_factory=BatchSettings)
    settings: BatchWorkerSettings = field(default_factory=lambda: BatchWorkerSettings(batch_concurrency_max=4))

    workers: list[BatchWorker] = field(default_factory=list)

    def worker(self) -> BatchWorker:
        self.workers.append(BatchWorker(self.engine, self.bucket, self.gateway.send, self.settings, self.limits))
        return self.workers[-1]

    def check(self) -> None:
        while check_one(self.engine, self.bucket, self.limits):
            pass

    def end(self) -> None:
        while end_one(self.engine, self.bucket, self.limits):
            pass

    def run(self, going_on: BatchWorker | None = None) -> None:
        """Until nothing is left to send."""
        self.check()
        running = going_on or self.worker()
        wait_until(lambda: not running.run_once(), timeout_s=60, what="all lines to end")
        self.end()

    def change(self, sql: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(sql))


@pytest.fixture
def rounds(engine, s3_settings, gateway, monkeypatch) -> Iterator[Rounds]:
    monkeypatch.setattr(worker, "_ROUND_S", 1.0)
    made = Rounds(engine, Bucket(s3_settings, StoreSettings()), gateway)
    yield made
    for each in made.workers:
        each._forget()


@pytest.fixture
def begin(sdk) -> Callable[..., openai.types.Batch]:
    """Uploads these lines and creates a batch of them."""

    def made(*lines: dict, **more: object) -> openai.types.Batch:
        file = sdk.files.create(file=("input.jsonl", jsonl(*lines)), purpose="batch")
        return sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more)

    return made
