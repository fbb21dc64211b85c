"""The life of an adapter on the whole platform: suspended with its tenant, served again, and deleted while it streams.

What replicas say of it is held against what the engine itself holds. At the end the doctor compares everything that is
published with Postgres and with the engines.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import openai
import pytest

from adapters.base_model_spec import describe
from core.contracts.replicas import ReplicaStatus
from data_plane.engine.control_protocol import EngineInventory
from tenora.demo.control import ControlPlane
from tenora.doctor.collect import engine_truth
from tenora.stack.base_model import HUB_NAME, MODEL_ID
from tenora.stack.status import running_stack
from tests.conftest import wait_until
from tests.fixtures.engine.isolation_judge import ROUNDING_DISTANCE, distance
from tests.fixtures.engine.real_engine import ANSWER_S
from tests.fixtures.uploads.peft_adapters import write_adapter

pytestmark = [pytest.mark.e2e]

NAME = "leaving"
STREAM_TOKENS = 160
NEVER_ENDS = {"0": -100, "2": -100}
"""The tokens at which the base model stops, so that a stream continues to its ``max_tokens``."""


class Customer:
    """A tenant with one ready adapter of random weights."""

    def __init__(self, platform, checkpoint: Path, work: Path, seed: int) -> None:
        self.id, self.key = platform.new_tenant(f"leaver{seed}")
        now = platform.status()
        self.control = ControlPlane(now["control_url"], self.key)
        self.gateway_url = now["gateway_url"]
        self.gateway = httpx.Client(
            base_url=self.gateway_url, headers={"Authorization": f"Bearer {self.key}"}, timeout=ANSWER_S
        )
        spec = describe(checkpoint, id=MODEL_ID, hub_name=HUB_NAME)
        folder = write_adapter(work / str(seed), spec, rank=8, seed=seed, scale=0.2)
        revision = self.control.upload_adapter(NAME, MODEL_ID, folder)
        self.revision_id = revision["id"]
        adapter_id = self.control.get(f"/api/v1/adapters/{NAME}")["id"]
        self.engine_name = f"{adapter_id}@{revision['sha256']}"
        wait_until(self.is_listed, what="the adapter at the gateway")

    def is_listed(self) -> bool:
        """Whether the gateway lists the adapter, which takes a moment after the adapter is ready."""
        listed = self.gateway.get("/v1/models").raise_for_status().json()["data"]
        return NAME in [model["id"] for model in listed]

    def ask(self, **changes) -> httpx.Response:
        body = {"model": NAME, "prompt": "The sea", "max_tokens": 4, "temperature": 0}
        return self.gateway.post("/v1/completions", json=body | changes)

    def first_step(self, model: str = NAME) -> dict[str, float]:
        """The likeliest first tokens of an answer."""
        (choice,) = self.ask(model=model, logprobs=5).raise_for_status().json()["choices"]
        return choice["logprobs"]["top_logprobs"][0]

    def revocations(self) -> list[dict]:
        return self.control.get("/api/v1/revocations")["data"]

    def close(self) -> None:
        self.gateway.close()
        self.control.close()


@pytest.fixture
def customer(platform, checkpoint, tmp_path):
    made = Customer(platform, checkpoint, tmp_path, seed=time.time_ns() % 1_000_000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def truths(platform):
    """Asks the engine of every replica of the base model what it holds, by replica id."""
    stack = running_stack(platform.settings)
    engine_key = stack.environment()["TENORA_ENGINE_KEY"]

    def ask() -> dict[str, EngineInventory]:
        statuses = msgspec.convert(stack.replicas(), type=list[ReplicaStatus])
        answers = {status.id: engine_truth(status, engine_key) for status in statuses if status.base_model == MODEL_ID}
        assert answers
        assert [answer for answer in answers.values() if isinstance(answer, str)] == []
        return answers

    return ask


def stream(customer: Customer, chunks: list) -> None:
    """Read a stream to its end. The SDK raises what the gateway sends as an error."""
    with openai.OpenAI(base_url=f"{customer.gateway_url}/v1", api_key=customer.key, max_retries=0) as sdk:
        for chunk in sdk.completions.create(
            model=NAME, prompt="Once upon a time", max_tokens=STREAM_TOKENS, temperature=0, logit_bias=NEVER_ENDS,
            stream=True, stream_options={"include_usage": True},
        ):  # fmt: skip
            chunks.append(chunk)  # noqa: PERF402 - another thread counts them


def left_of(name: str, truth: EngineInventory) -> list[str]:
    """The tiers in which an engine still has the adapter."""
    places = {
        "slots": name in truth.in_slots,
        "memory": name in truth.in_memory,
        "names": name in truth.names,
        "disk": name.partition("@")[2] in truth.disk,
        "an unnamed slot": any(slot.name is None and not slot.zeroed for slot in truth.slots),
    }
    return [place for place, is_there in places.items() if is_there]


def receipts_of(revocation: dict, truths) -> None:
    """One receipt a live replica, each of nothing left, and the engines say the same."""
    (name,) = revocation["engine_names"]
    now = truths()
    assert {receipt["replica"] for receipt in revocation["receipts"]} == now.keys()
    assert revocation["awaited_replicas"] == []
    for receipt in revocation["receipts"]:
        assert (receipt["state"], receipt["in_slots"], receipt["in_memory"], receipt["on_disk"]) == (
            "removed", [], [], [],
        )  # fmt: skip
    assert {replica: left_of(name, truth) for replica, truth in now.items()} == {replica: [] for replica in now}
    assert all(truth.refuses(name) for truth in now.values())


def revocation_once(customer: Customer, reached: Callable[[dict], object]) -> dict:
    """The newest revocation, once it has got so far."""
    return wait_until(
        lambda: now if reached(now := customer.revocations()[0]) else None, timeout_s=60, what="the unloading"
    )


def test_an_adapter_is_suspended_with_its_tenant_served_again_and_deleted_while_it_streams(
    platform, customer, truths, promised_s
):
    path = f"/api/v1/admin/tenants/{customer.id}"
    before, base = customer.first_step(), customer.first_step(MODEL_ID)
    assert distance(before, base) > ROUNDING_DISTANCE

    def rows() -> list[dict]:
        data = customer.control.get("/api/v1/usage", group_by="revision", bucket="1d")["data"]
        return [row for row in data if row["revision"] == customer.revision_id]

    wait_until(lambda: sum(row["requests"] for row in rows()) == 1, timeout_s=20, what="usage")
    assert sum(sum(row["service"]["tiers"].values()) for row in rows()) == 1, "the engine said the tier of the request"

    with platform.admin() as admin:
        admin.patch(path, json={"status": "suspended"}).raise_for_status()
        wait_until(lambda: customer.ask().status_code == 403, timeout_s=promised_s(2), what="403 from the gateway")
        assert customer.ask().json()["error"]["code"] == "tenant_suspended"
        revocation = revocation_once(customer, lambda now: now["state"] == "unloaded")
        assert revocation["reason"] == "suspended"
        receipts_of(revocation, truths)
        admin.patch(path, json={"status": "active"}).raise_for_status()
    wait_until(lambda: customer.ask().status_code == 200, timeout_s=30, what="an answer")
    # The replica's own probe may run in the same step and round differently: the weights are judged, not the words.
    assert distance(customer.first_step(), before) < distance(before, base) / 2, "the same weights came back"
    assert [each["state"] for each in customer.revocations()] == ["lifted"]
    assert not any(truth.refuses(customer.engine_name) for truth in truths().values())

    with ThreadPoolExecutor(1) as reader:
        chunks: list = []
        streamed = reader.submit(stream, customer, chunks)
        wait_until(lambda: len(chunks) > 3 or streamed.done(), timeout_s=60, what="the stream")
        assert any(customer.engine_name in truth.in_slots for truth in truths().values())
        customer.control.delete(f"/api/v1/adapters/{NAME}")
        wait_until(lambda: customer.ask().status_code == 404, timeout_s=promised_s(2), what="404 from the gateway")
        assert not streamed.done(), "the stream was still running when new calls were refused"
        assert customer.revocations()[0]["unloaded_at"] is None
        streamed.result(90)
    assert (chunks[-2].choices[0].finish_reason, chunks[-1].usage.completion_tokens) == ("length", STREAM_TOKENS)
    revocation = revocation_once(customer, lambda now: now["unloaded_at"])
    assert revocation["state"] == "quarantined", "every replica is rid of it; the object store keeps it for a while"
    # The stream, and perhaps one of the calls that asked for the 404.
    assert sum(receipt["drained_requests"] for receipt in revocation["receipts"]) >= 1
    assert sum(receipt["aborted_requests"] for receipt in revocation["receipts"]) == 0
    receipts_of(revocation, truths)
    assert customer.ask().status_code == 404

    examined = platform.run("doctor", "--json")
    assert examined.returncode == 0, examined.stdout + examined.stderr
    looked_at = json.loads(examined.stdout)["looked_at"]
    assert looked_at["replicas"]
    assert looked_at["gateways"]
