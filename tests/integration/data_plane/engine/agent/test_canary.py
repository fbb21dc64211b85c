"""Canaries on a replica: each failure of an adapter has its code; failures of anything else give no verdict."""

import msgspec
import pytest

from core import redis_keys
from core.contracts.canary import CanaryRunning
from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import engine_name, running_agent


@pytest.fixture(scope="module")
def module_harness(redis_server, tmp_path_factory):
    with running_agent(
        redis_server, tmp_path_factory.mktemp("agent"), canary_load_timeout_s=2, canary_answer_timeout_s=1.5
    ) as harness:
        yield harness


@pytest.fixture
def harness(module_harness):
    module_harness.engine.faults()
    module_harness.engine.tiers(absent=[])
    yield module_harness
    assert module_harness.agent.process.poll() is None
    assert "Traceback" not in module_harness.agent.log.read_text()


def gave_no_verdict(harness, job) -> bool:
    """Whether the agent logged that this job's run gave no verdict."""
    lines = harness.agent.log.read_text().splitlines()
    return any("gave no verdict" in line and job.revision_id in line for line in lines)


def test_an_adapter_that_differs_from_its_base_passes_and_no_tenant_is_billed(harness):
    name = engine_name()
    result = harness.canary(name)
    assert (result.code, result.message) == (None, "")
    assert result.prompt
    assert result.base_answer != result.adapter_answer
    assert 0 < len(result.base_answer) <= 200
    assert result.logprob_difference >= 0.5
    assert harness.engine.control("POST", "/ended", {"after": 0})["hours"] == []
    models = [line["body"]["model"] for line in harness.engine.received() if "cache_salt" in line["body"]]
    assert {"tiny-chat", name} <= set(models)


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"mimic_base": True}, "canary_no_effect"),
        ({"mimic_base": True, "logprob_noise": 0.01}, "canary_no_effect"),
        ({"logprob": None, "adapters_only": True}, "canary_not_finite"),
        ({"logprob": -9999.0, "adapters_only": True}, "canary_not_finite"),
        ({"status": 500, "adapters_only": True}, "canary_not_finite"),
        ({"error_before": True, "adapters_only": True}, "canary_not_finite"),
        ({"status": 400, "adapters_only": True}, "canary_failed_to_load"),
    ],
    ids=str,
)
def test_each_failure_has_its_code_and_a_message_with_the_fix(harness, faults, code):
    harness.engine.faults(**faults)
    result = harness.canary(engine_name())
    assert result.code == code
    assert len(result.message) > 20
    assert "secret" not in result.message


def test_an_adapter_that_the_engine_refuses_failed_to_load(harness):
    name = engine_name()
    harness.engine.tiers(absent=[name])
    result = harness.canary(name)
    assert result.code == "canary_failed_to_load"
    assert result.adapter_answer == ""


@pytest.mark.parametrize(
    "faults",
    [{"status": 500}, {"loading": "2", "adapters_only": True}, {"hang": True}, {"logprob": None}],
    ids=str,
)
def test_a_failure_that_is_not_the_adapters_is_retried_later_and_then_gets_a_verdict(harness, faults):
    name = engine_name()
    lost = harness.agent.metric("tenora_replica_canaries_total", '{verdict="lost"}')
    harness.engine.faults(**faults)
    job = harness.post_canary(name)
    wait_until(lambda: gave_no_verdict(harness, job), what="the end of the run")
    harness.engine.faults()
    assert harness.canary_result(job).code == "canary_later"
    assert not harness.client.exists(redis_keys.canary_running(job.revision_id))
    assert harness.agent.metric("tenora_replica_canaries_total", '{verdict="lost"}') == lost + 1
    assert harness.canary(name, attempt=2).code is None


def test_after_a_harmful_run_the_job_is_answered_only_once_the_base_model_answers(harness):
    """If the engine is lost, the job is never answered, and the record that it was taken stays."""
    harness.engine.faults(hang=True)
    job = harness.post_canary(engine_name())
    wait_until(lambda: gave_no_verdict(harness, job), what="the end of the run")
    asked = len(harness.engine.received())
    wait_until(lambda: len(harness.engine.received()) >= asked + 2, what="another run of the base model")
    assert harness.client.llen(redis_keys.CANARY_RESULTS) == 0
    taken = msgspec.json.decode(harness.client.get(redis_keys.canary_running(job.revision_id)), type=CanaryRunning)
    assert (taken.attempt, taken.boot_id) == (1, harness.status().boot_id)
    harness.engine.faults()
    assert harness.canary_result(job).code == "canary_later"


def test_an_invalid_job_and_a_revoked_adapter_are_skipped(harness):
    harness.client.lpush(redis_keys.canary_jobs("tiny-chat", 16), b"no job")
    revoked = engine_name()
    revocation = harness.revoke(revoked)
    wait_until(lambda: harness.removed(revocation))
    job = harness.post_canary(revoked)
    assert harness.canary_result(job).code == "canary_later"
    assert harness.canary(engine_name()).code is None
