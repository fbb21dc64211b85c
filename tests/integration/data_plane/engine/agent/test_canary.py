"""Canaries on a replica: each way an adapter can fail has its code, and what is not its fault gives no verdict."""

import msgspec
import pytest

from core import redis_keys
from core.contracts.canary import CanaryRunning
from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import engine_name, room_of


@pytest.fixture(scope="module")
def module_room(redis_server, tmp_path_factory):
    with room_of(
        redis_server, tmp_path_factory.mktemp("agent"), canary_load_timeout_s=2, canary_answer_timeout_s=1.5
    ) as room:
        yield room


@pytest.fixture
def room(module_room):
    module_room.engine.faults()
    module_room.engine.tiers(absent=[])
    yield module_room
    assert module_room.agent.process.poll() is None
    assert "Traceback" not in module_room.agent.log.read_text()


def gave_no_verdict(room, job) -> bool:
    """Whether the agent has said that this job's run ended without one."""
    lines = room.agent.log.read_text().splitlines()
    return any("gave no verdict" in line and job.revision_id in line for line in lines)


def test_an_adapter_that_answers_otherwise_than_its_base_passes_and_costs_no_tenant_anything(room):
    name = engine_name()
    result = room.canary(name)
    assert (result.code, result.message) == (None, "")
    assert result.prompt
    assert result.base_answer != result.adapter_answer
    assert 0 < len(result.base_answer) <= 200
    assert result.logprob_difference >= 0.5
    counted = wait_until(
        lambda: (found := room.counters()) and found.generation_tokens == room.engine.counters()[1] and found
    )
    assert counted.tenant_tokens == 0
    assert counted.probe_generation_tokens > 10
    models = [line["body"]["model"] for line in room.engine.received() if "cache_salt" in line["body"]]
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
def test_each_way_to_fail_has_its_code_and_says_what_to_do(room, faults, code):
    room.engine.faults(**faults)
    result = room.canary(engine_name())
    assert result.code == code
    assert len(result.message) > 20
    assert "secret" not in result.message


def test_an_adapter_that_the_engine_will_not_take_failed_to_load(room):
    name = engine_name()
    room.engine.tiers(absent=[name])
    result = room.canary(name)
    assert result.code == "canary_failed_to_load"
    assert result.adapter_answer == ""


@pytest.mark.parametrize(
    "faults",
    [{"status": 500}, {"loading": "2", "adapters_only": True}, {"hang": True}, {"logprob": None}],
    ids=str,
)
def test_what_is_not_the_adapters_fault_is_answered_later_and_the_next_attempt_gets_a_verdict(room, faults):
    name = engine_name()
    lost = room.agent.metric("tenora_replica_canaries_total", '{verdict="lost"}')
    room.engine.faults(**faults)
    job = room.post_canary(name)
    wait_until(lambda: gave_no_verdict(room, job), what="the end of the run")
    room.engine.faults()
    assert room.canary_result(job).code == "canary_later"
    assert not room.client.exists(redis_keys.canary_running(job.revision_id))
    assert room.agent.metric("tenora_replica_canaries_total", '{verdict="lost"}') == lost + 1
    assert room.canary(name, attempt=2).code is None


def test_a_run_that_harms_the_engine_is_answered_only_once_the_base_is(room):
    """Or never, when the engine is lost: what says that the job was taken then stays."""
    room.engine.faults(hang=True)
    job = room.post_canary(engine_name())
    wait_until(lambda: gave_no_verdict(room, job), what="the end of the run")
    asked = len(room.engine.received())
    wait_until(lambda: len(room.engine.received()) >= asked + 2, what="the base to be asked again")
    assert room.client.llen(redis_keys.CANARY_RESULTS) == 0
    taken = msgspec.json.decode(room.client.get(redis_keys.canary_running(job.revision_id)), type=CanaryRunning)
    assert (taken.attempt, taken.boot_id) == (1, room.status().boot_id)
    room.engine.faults()
    assert room.canary_result(job).code == "canary_later"


def test_what_is_no_job_and_a_revoked_adapter_are_passed_over(room):
    room.client.lpush(redis_keys.canary_jobs("tiny-chat", 16), b"no job")
    revoked = engine_name()
    revocation = room.revoke(revoked)
    wait_until(lambda: room.removed(revocation))
    job = room.post_canary(revoked)
    assert room.canary_result(job).code == "canary_later"
    assert room.canary(engine_name()).code is None


def test_the_heartbeat_goes_on_while_a_canary_hangs(room, promised_s):
    room.engine.faults(hang=True)
    job = room.post_canary(engine_name())
    wait_until(lambda: len(room.engine.received()) and room.engine.received()[-1]["body"].get("logprobs"))
    beats = {room.status().heartbeat_ms}
    wait_until(
        lambda: beats.add(room.status().heartbeat_ms) or len(beats) >= 4, timeout_s=promised_s(2), what="heartbeats"
    )
    room.engine.faults()
    room.canary_result(job)  # or it would come to the next test
