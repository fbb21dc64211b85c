"""A whole replica, agent and real vLLM: canaries judge real weights, revoked adapters leave real tensors, and where
adapters lie is published as the engine has it.
"""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import redis as redis_client

from adapters.base_model import describe
from adapters.normalise import normalise
from adapters.s3 import Bucket
from adapters.settings import StoreSettings
from adapters.store import AdapterStore
from adapters.validation import Bounds, UploadLimits, validate
from adapters.verdict import Report
from core import keys
from core.ids import new_id
from data_plane.engine.agent.probe import parse_metrics
from tenora.doctor_checks import Look, ReplicaLook, findings
from tenora.doctor_look import engine_truth
from tenora.program import Program, free_port
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.agent_room import REPLICA, Room
from tests.fixtures.peft_adapters import write_adapter
from tests.fixtures.published import Publisher

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
BASE = "smollm2-135m-instruct"


class RealRoom(Room):
    """A room whose engine is real."""

    def is_settled(self) -> bool:
        """Whether what is published of the engine's counters is what its own page says."""
        page = parse_metrics(httpx.get(f"{self.engine.url}/metrics").text)
        counted = self.counters()
        return (page.prompt_tokens, page.generation_tokens) == (counted.prompt_tokens, counted.generation_tokens)


class Shop:
    """Stores adapters of random weights, as validation would have left them."""

    def __init__(self, checkpoint: Path, s3, work: Path) -> None:
        self.base = describe(checkpoint, id=BASE, hub_name="HuggingFaceTB/SmolLM2-135M-Instruct")
        self.store = AdapterStore(Bucket(s3, StoreSettings()))
        self.store.bucket.ensure()
        self.work = work

    def adapter(self, seed: int, *, scale: float) -> str:
        """The engine name of a new one; with a scale of 0 it changes nothing."""
        folder = write_adapter(self.work / f"upload-{seed}", self.base, rank=8, seed=seed, scale=scale, dtype="BF16")
        revision = self.work / f"revision-{seed}"
        revision.mkdir()
        limits = UploadLimits(plan_name="tests", rank_max=16, bytes_max=1 << 30)
        accepted = validate(folder, base=self.base, known_bases=set(), limits=limits, bounds=Bounds(), report=Report())
        return f"{new_id('ad')}@{self.store.put_revision(revision, normalise(accepted, folder, revision, self.base))}"


@pytest.fixture(scope="module")
def shop(checkpoint, s3_settings, tmp_path_factory) -> Shop:
    return Shop(checkpoint, s3_settings, tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def room(checkpoint, s3_settings, redis_server, tmp_path_factory):
    work, port = tmp_path_factory.mktemp("replica"), free_port()
    settings = {
        "replica_id": REPLICA, "base_model": BASE, "model_path": checkpoint, "engine_port": port, "engine_slots": 2,
        "engine_memory_adapters": 4, "engine_context_tokens": 512, "engine_sequences": 32, "redis_url": redis_server,
        "engine_run_dir": work / "run", "engine_key": processes.ENGINE_KEY, "cache_dir": work / "cache",
        "cache_free_bytes_min": 0, "s3_endpoint": s3_settings.s3_endpoint, "s3_bucket": s3_settings.s3_bucket,
        "s3_access_key": s3_settings.s3_access_key, "s3_secret_key": s3_settings.s3_secret_key.get_secret_value(),
    }  # fmt: skip
    with redis_client.Redis.from_url(redis_server) as client:
        client.flushall()
        publisher = Publisher(client, processes.PEPPER)
        program = Program(
            name="replica",
            argv=(sys.executable, "-m", "data_plane", "replica"),
            ready=lambda: client.exists(keys.replica(REPLICA)) == 1,
            ready_s=200,
            stop_s=40,
            log=work / "replica.log",
            env={f"TENORA_{name.upper()}": str(value) for name, value in settings.items()},
        )
        with processes.running(program) as process:
            url = f"http://127.0.0.1:{port}"
            engine = processes.WitnessProcess(REPLICA, url, process, work / "no journal")
            room = RealRoom(client, publisher, SimpleNamespace(engine=engine), base_model=BASE)
            wait_until(lambda: room.status().state == "ready", what="a ready replica")
            room.log = program.log
            yield room


def ask(room: Room, name: str, *, tokens: int = 8) -> str:
    """As a gateway asks."""
    headers = {"authorization": f"Bearer {processes.ENGINE_KEY}", "x-tenora-adapter": name}
    body = {"model": name, "prompt": "The city of", "max_tokens": tokens, "temperature": 0}
    answer = httpx.post(f"{room.engine.url}/v1/completions", json=body, headers=headers, timeout=60)
    answer.raise_for_status()
    return answer.json()["choices"][0]["text"]


def test_a_canary_tells_weights_that_do_something_from_weights_that_do_nothing(room, shop):
    wait_until(room.is_settled, what="the counters to follow the engine's")
    before, began = room.counters().tenant_tokens, time.monotonic()
    passed = room.canary(shop.adapter(1, scale=0.06), timeout_s=60)
    print(f"\ncanary in {time.monotonic() - began:.1f} s, of it {passed.load_ms} ms from the store to the first token")
    print(f"base: {passed.base_answer!r}\nadapter: {passed.adapter_answer!r} ({passed.logprob_difference:.2f} nats)")
    assert (passed.code, passed.message) == (None, "")
    assert "Paris" in passed.base_answer
    assert passed.logprob_difference > 0.5
    assert passed.load_ms > 0
    idle = room.canary(shop.adapter(2, scale=0.0), timeout_s=60)
    assert idle.code == "canary_no_effect"
    assert idle.logprob_difference == 0  # on an idle engine B = 0 is exactly nothing
    assert idle.adapter_answer == idle.base_answer
    missing = room.canary(f"{new_id('ad')}@{'0' * 64}", timeout_s=60)
    assert missing.code == "canary_failed_to_load"
    wait_until(
        lambda: room.is_settled() and room.counters().tenant_tokens == before, what="canaries' tokens to be the agent's"
    )


def test_what_is_published_is_what_the_engine_has(room, shop):
    names = [shop.adapter(10 + number, scale=0.06) for number in range(6)]
    for name in names:
        ask(room, name)

    def differences() -> list:
        status, residency = room.status(), room.residency()
        replica = ReplicaLook(status=status, residency=residency, truth=engine_truth(status, processes.ENGINE_KEY))
        return findings(
            Look(replicas=(replica,), gateways=(), position=None, published={}, stored={}, revocations=(), routes={},
                 aliases={})
        )  # fmt: skip

    def of_replica() -> list:
        return [found for found in differences() if found.where.startswith("replica")]

    wait_until(lambda: of_replica() == [], what="residency and truth to agree")
    assert set(room.residency().slots) <= set(names)
    assert len(room.residency().memory) <= 4


def test_a_flip_is_loaded_before_its_first_request(room, shop):
    name = shop.adapter(20, scale=0.06)
    room.hint(name)
    wait_until(lambda: room.in_memory(name), what="the hinted adapter")
    assert ask(room, name)


def test_a_revoked_adapter_leaves_slots_memory_and_disk_of_the_real_engine(room, shop):
    name, other = shop.adapter(30, scale=0.06), shop.adapter(31, scale=0.06)
    for each in (name, other):
        ask(room, each)
    revocation = room.revoke(name)
    receipt = wait_until(lambda: room.removed(revocation), timeout_s=60, what="the receipt")
    assert (receipt.in_slots, receipt.in_memory, receipt.on_disk) == ((), (), ())
    truth = room.truth()
    assert name not in str({field: value for field, value in truth.items() if field != "revoked"})
    assert all(slot["zeroed"] for slot in truth["slots"] if slot["name"] is None)
    assert name.partition("@")[2] not in truth["disk"]
    with pytest.raises(httpx.HTTPStatusError) as refused:
        ask(room, name)
    assert refused.value.response.status_code == 404
    assert ask(room, other)
    assert '"level":"error"' not in os.linesep.join(
        line for line in room.log.read_text(errors="replace").splitlines() if '"process": "replica"' in line
    )
