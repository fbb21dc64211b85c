"""Any one process of the stack may be killed at any time: it comes back within 60 s, on a slow machine within twice the
time of the stack's first start, and no state is lost.
"""

import os
import signal
from pathlib import Path

import openai
import pytest

from tests.conftest import wait_until
from tests.e2e.conftest import lives, processes_of, wait_until_ready

pytestmark = [pytest.mark.e2e]


NEVER_ENDS = {"0": -100, "2": -100}
"""The tokens at which the base model stops: when it would, differs by the rounding of the CPU."""


def commands(platform) -> dict[int, str]:
    return processes_of(Path(platform.environment["TENORA_HOME"]))


def pid_of(platform, name: str) -> int:
    if name in ("supervise", "guard"):
        return next(pid for pid, command in commands(platform).items() if command.rstrip().endswith(f"tenora {name}"))
    if name == "engine":
        return next(pid for pid, command in commands(platform).items() if "VLLM::EngineCore" in command)
    if name == "engine worker":
        return next(pid for pid, command in commands(platform).items() if "VLLM::Worker" in command)
    if name == "engine API":
        return next(pid for pid, command in commands(platform).items() if "vllm.entrypoints" in command)
    return platform.status()["programs"][name]["pid"]


def ask(platform, key, model) -> str:
    client = openai.OpenAI(base_url=platform.status()["gateway_url"] + "/v1", api_key=key, max_retries=0, timeout=60)
    with client:
        done = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0
        )
    return done.choices[0].message.content


@pytest.fixture(scope="module")
def customer(platform):
    return platform.new_tenant("survivor")


# One store, one gateway and one engine are killed in `make test`, all the others in `make soak`.
KILLED = ("valkey", "gateway", "engine")
KILLED_IN_SOAK = (
    "postgres", "s3", "web", "worker", "billing", "guard", "engine worker", "engine API", "replica", "supervise",
)  # fmt: skip


@pytest.mark.parametrize("name", [*KILLED, *(pytest.param(name, marks=pytest.mark.soak) for name in KILLED_IN_SOAK)])
def test_a_killed_process_comes_back_and_state_is_kept(platform, customer, model, name, promised_s):
    tenant_id, key = customer

    def answers():
        try:
            return bool(ask(platform, key, model))
        except openai.APIError:
            return False  # the gateway starts again, or has not seen the heartbeat of a replica that has just come back

    wait_until(answers, timeout_s=promised_s(20), what="an answer, whatever the test before has killed")
    victim = pid_of(platform, name)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not lives(victim), what=f"the end of {name}")
    back_s = platform.return_s(promised_s(60))
    wait_until(lambda: _is_back(platform, name, victim), timeout_s=back_s, what=f"the return of {name}")
    wait_until_ready(platform, timeout_s=promised_s(60))
    wait_until(answers, timeout_s=back_s, what="an answer: what dies with the victim may have looked ready until now")
    with platform.admin() as admin:
        assert admin.get(f"/api/v1/admin/tenants/{tenant_id}").json()["id"] == tenant_id


def _is_back(platform, name: str, victim: int) -> bool:
    try:
        return pid_of(platform, name) not in (None, victim)
    except (StopIteration, KeyError):
        return False


def test_requests_around_the_kills_are_billed(platform, customer, model):
    """The ledger and the invoices agree, whatever was killed before."""
    tenant_id, key = customer
    ask(platform, key, model)
    platform.reconcile_when_settled()
    with platform.admin() as admin:
        closed = admin.post("/api/v1/admin/billing/close", json={"until": "now"}).raise_for_status().json()["invoices"]
        whole = admin.get("/api/v1/admin/reconciliation").json()
    assert tenant_id in {invoice["tenant_id"] for invoice in closed}
    assert whole["ledger_tokens"] == whole["invoiced_tokens"] > 0


@pytest.mark.soak
def test_a_replica_that_stops_finishes_the_requests_it_has_begun(platform, customer, model):
    """SIGTERM in the middle of a stream: the stream ends whole, and the replica comes back."""
    _, key = customer
    with openai.OpenAI(
        base_url=platform.status()["gateway_url"] + "/v1", api_key=key, max_retries=0, timeout=60
    ) as client:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a very long story about the sea."}],
            max_tokens=200,
            temperature=0,
            logit_bias=NEVER_ENDS,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks, victim = [], None
        for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == 5:
                victim = pid_of(platform, "replica")
                os.kill(victim, signal.SIGTERM)
    assert chunks[-1].usage.completion_tokens == 200
    assert {choice.finish_reason for chunk in chunks for choice in chunk.choices} == {None, "length"}
    wait_until(lambda: not lives(victim), what="the end of the replica")
    wait_until(lambda: _is_back(platform, "replica", victim), timeout_s=platform.return_s(), what="its return")
    wait_until_ready(platform)
