"""Two real replicas of one machine behind one gateway: one tenant's adapters, and one replica killed under streams."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

from adapters.base_model_spec import describe
from tenora.demo.control import ControlPlane
from tenora.stack.base_model import HUB_NAME, MODEL_ID
from tests.conftest import wait_until
from tests.e2e.conftest import lives, processes_of, running_platform, wait_until_ready
from tests.fixtures.engine.real_engine import ANSWER_S
from tests.fixtures.uploads.peft_adapters import write_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

NAMES = ("one", "two", "three")
TOKENS = 120
NEVER_ENDS = {"0": -100, "2": -100}


@dataclass
class Stream:
    """One stream as its caller sees it: its tokens by the last chunk. ``begun`` is set at its first token."""

    tokens: int = 0
    error: str = ""
    begun: threading.Event = field(default_factory=threading.Event)


@pytest.fixture(scope="module")
def pair(no_replica, checkpoint, tmp_path_factory):
    with running_platform(checkpoint, tmp_path_factory.mktemp("pair"), TENORA_REPLICAS="2") as running:
        yield running


@pytest.fixture(scope="module")
def tenant(pair, checkpoint, tmp_path_factory) -> tuple[str, str]:
    """(id, key) of a tenant with three adapters."""
    tenant_id, key = pair.new_tenant("pair")
    spec, work = describe(checkpoint, id=MODEL_ID, hub_name=HUB_NAME), tmp_path_factory.mktemp("adapters")
    control = ControlPlane(pair.status()["control_url"], key)
    for seed, name in enumerate(NAMES):
        folder = write_adapter(work / name, spec, rank=8, seed=seed, scale=0.1)
        control.upload_adapter(name, MODEL_ID, folder)
    control.close()
    with sdk(pair, key) as client:
        wait_until(lambda: {*NAMES} <= {model.id for model in client.models.list()}, what="the adapters")
    return tenant_id, key


def sdk(pair, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=pair.status()["gateway_url"] + "/v1", api_key=key, max_retries=0, timeout=ANSWER_S)


def follow(client: openai.OpenAI, model: str, stream: Stream) -> None:
    try:
        for chunk in client.completions.create(
            model=model, prompt="The sea", max_tokens=TOKENS, temperature=0, logit_bias=NEVER_ENDS,
            stream=True, stream_options={"include_usage": True},
        ):  # fmt: skip
            stream.begun.set()
            stream.tokens = chunk.usage.completion_tokens if chunk.usage else 0
    except openai.OpenAIError as error:
        stream.error = str(error)
    finally:
        stream.begun.set()


def counted(pair) -> dict[str, int]:
    with pair.admin() as admin:
        replicas = admin.get("/api/v1/admin/replicas").raise_for_status().json()["data"]
    return {each["id"]: each["counted_tokens"] for each in replicas}


def cores_of_workers(pair) -> list[set[int]]:
    """The cores to which each engine has bound threads."""
    home = Path(pair.environment["TENORA_HOME"])
    workers = [pid for pid, command in processes_of(home).items() if "VLLM::Worker" in command]
    bound = []
    for worker in workers:
        threads = (os.sched_getaffinity(int(thread.name)) for thread in Path(f"/proc/{worker}/task").iterdir())
        bound.append({core for cores in threads if len(cores) == 1 for core in cores})
    return bound


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two replicas on one core share it")
def test_each_replica_has_cores_of_its_own(pair):
    one, two = cores_of_workers(pair)
    assert one
    assert two
    assert not one & two


def test_a_killed_replica_breaks_its_own_streams_alone_and_engines_equal_the_ledger(pair, tenant):
    tenant_id, key = tenant
    before = counted(pair)
    assert set(before) == {"rep_1", "rep_2"}
    streams = [Stream() for _ in range(12)]
    with sdk(pair, key) as client, ThreadPoolExecutor(len(streams)) as callers:
        for number, stream in enumerate(streams):
            callers.submit(follow, client, NAMES[number % 3], stream)
        for stream in streams:
            assert stream.begun.wait(60)
        wait_until(lambda: all(now > before[name] for name, now in counted(pair).items()), what="work on both")
        victim = pair.status()["programs"]["replica-2"]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not lives(victim), what="the end of the replica")
        began = time.monotonic()
        assert client.completions.create(model="one", prompt="Hello", max_tokens=1).choices
        assert time.monotonic() - began < 10
    broken = [stream for stream in streams if stream.error]
    assert 0 < len(broken) < len(streams)
    assert {stream.tokens for stream in streams if not stream.error} == {TOKENS}
    wait_until_ready(pair, timeout_s=120)
    found = pair.reconcile_when_settled()
    assert found["unexplained_drift_tokens"] == 0, found
    with pair.admin() as admin:
        closed = admin.post("/api/v1/admin/billing/close", json={"until": "now"}).raise_for_status().json()["invoices"]
        whole = admin.get("/api/v1/admin/reconciliation").json()
    assert tenant_id in {invoice["tenant_id"] for invoice in closed}
    assert whole["ledger_tokens"] == whole["invoiced_tokens"] > 0
