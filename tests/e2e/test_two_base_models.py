"""Two base models serve at once on one machine: the second is made from the first and stored by its digest. The
platform runs the replicas of its pool, and moves them to another revision under streams.
"""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from adapters.base_model_spec import describe
from data_plane.engine.plugin import installed_engine
from tenora.demo.control import ControlPlane
from tenora.stack.base_model import HUB_NAME, MODEL_ID
from tenora.training.shrink import LABEL, shrink
from tests.conftest import wait_until
from tests.fixtures.uploads.peft_adapters import write_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

SMALL, SMALL_HUB_NAME, POOL = "smollm2-small", "tests/small", "small"
NEVER_ENDS = {"0": -100, "2": -100}
TOKENS = 200
START_S = 300  # beside streams on two cores, an engine may take more than 120 s to import vLLM


def tenora(platform, *arguments: str) -> str:
    ran = platform.run(*arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def replicas(platform, pool: str = POOL) -> list[dict]:
    """The pool's replicas by revision and state."""
    with platform.admin() as admin:
        return admin.get(f"/api/v1/admin/pools/{pool}").raise_for_status().json()["replicas"]


def one_of(revision: int) -> list[dict]:
    return [{"revision": revision, "state": "ready", "count": 1}]


@pytest.fixture(scope="module")
def small(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    shrink(checkpoint, folder, layers=6, steps=2, seed=1, progress=lambda _step, _steps, _loss: None)
    assert json.loads((folder / "config.json").read_text())[LABEL] == f"{checkpoint.name}, 6 layers of 30"
    return folder


def serve(platform, folder, pool: str, base_model: str, hub_name: str, *options: str) -> None:
    """A pool with one replica, which knows its base model by its digest alone."""
    tenora(platform, "base-models", "add", str(folder), "--id", base_model, "--hub-name", hub_name, *options)
    digest = tenora(platform, "base-models", "push", str(folder)).strip()
    device, version = installed_engine()
    tenora(platform, "pools", "create", pool, "--base-model", base_model)
    tenora(platform, "pools", "revise", pool, "--weights", digest, "--engine", f"vllm {version} {device}")
    tenora(platform, "pools", "use", pool, "1")
    wait_until(lambda: replicas(platform, pool) == one_of(1), timeout_s=START_S, what=f"a replica of {pool}")


@pytest.fixture(scope="module")
def pool(platform, small):
    serve(platform, small, POOL, SMALL, SMALL_HUB_NAME)


@pytest.fixture(scope="module")
def sdk(platform, pool, checkpoint, small, tmp_path_factory):
    """A client of a tenant with an adapter of each base model."""
    _, key = platform.new_tenant("both")
    now, work = platform.status(), tmp_path_factory.mktemp("adapters")
    with ControlPlane(now["control_url"], key) as control:
        for name, folder, base, hub_name in (
            ("large-voice", checkpoint, MODEL_ID, HUB_NAME),
            ("small-voice", small, SMALL, SMALL_HUB_NAME),
        ):
            spec = describe(folder, id=base, hub_name=hub_name)
            control.upload_adapter(name, base, write_adapter(work / name, spec, rank=8, seed=5, scale=0.1))
    with openai.OpenAI(base_url=f"{now['gateway_url']}/v1", api_key=key, max_retries=0, timeout=300) as client:
        wait_until(lambda: {"large-voice", "small-voice"} <= {each.id for each in client.models.list()})
        yield client


def test_both_base_models_and_an_adapter_of_each_answer_at_once(platform, sdk, model):
    parents = {each.id: each.parent for each in sdk.models.list()}
    assert (parents["large-voice"], parents["small-voice"]) == (model, SMALL)
    answers = {
        name: sdk.completions.create(model=name, prompt="The sea is", max_tokens=8, temperature=0).choices[0].text
        for name in (model, SMALL, "large-voice", "small-voice")
    }
    assert len(set(answers.values())) == 4, answers


def test_a_pool_moves_to_another_revision_and_back_without_breaking_a_stream(platform, sdk):
    before = platform.reconcile_when_settled()["unexplained_drift_tokens"]  # of engines that other tests killed
    tenora(platform, "pools", "revise", POOL, "--set", "engine_sequences=32")
    ended, whole = threading.Event(), []

    def follow_streams() -> None:
        while not ended.is_set():
            chunks = list(
                sdk.completions.create(
                    model="small-voice", prompt="The sea", max_tokens=TOKENS, stream=True, logit_bias=NEVER_ENDS
                )
            )
            whole.append(chunks[-1].choices[0].finish_reason == "length")

    with ThreadPoolExecutor(3) as callers:
        following = [callers.submit(follow_streams) for _ in range(3)]
        try:
            for revision in (2, 1):
                tenora(platform, "pools", "use", POOL, str(revision))
                wait_until(
                    lambda revision=revision: replicas(platform) == one_of(revision),
                    timeout_s=START_S, what=f"revision {revision} alone",
                )  # fmt: skip
        finally:
            ended.set()
        for each in following:
            each.result(60)
    assert len(whole) > 6
    assert all(whole)
    assert platform.reconcile_when_settled()["unexplained_drift_tokens"] == before


def test_a_pool_for_embeddings_embeds_from_the_base_models_hidden_states(platform, sdk, small):
    """Not a trained embedding model: the small base model's own states, which tell equal texts from others."""
    before = platform.reconcile_when_settled()["unexplained_drift_tokens"]
    tenora(platform, "pools", "change", POOL, "--replicas", "0-0")
    model = "smollm2-small-embed"
    serve(platform, small, "embeddings", model, "tests/small-embed", "--task", "embed")
    wait_until(lambda: model in {each.id for each in sdk.models.list()})
    texts = ["The sea is blue.", "Invoices are due in ten days.", "The sea is blue."]
    found = sdk.embeddings.create(model=model, input=texts)
    sea, invoices, same = (each.embedding for each in found.data)
    width = json.loads((small / "config.json").read_text())["hidden_size"]
    assert {len(sea), len(invoices)} == {width}
    assert similarity(sea, same) > 0.999 > similarity(sea, invoices)
    alone = sdk.embeddings.create(model=model, input=texts[1]).data[0].embedding
    assert similarity(invoices, alone) > 0.999
    assert platform.reconcile_when_settled()["unexplained_drift_tokens"] == before


def similarity(one: list[float], other: list[float]) -> float:
    """The cosine of the angle between two vectors."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths
