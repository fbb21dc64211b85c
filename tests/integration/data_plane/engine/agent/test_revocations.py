"""Revoked adapters on a replica: refused at once, and removed from every tier before there is a receipt."""

import secrets
import threading
import urllib.error

import pytest

from core import redis_keys
from core.ids import new_id
from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import REPLICA, engine_name, running_agent

ATTEMPTS, FAILURES = "tenora_replica_revocations_total", "tenora_replica_task_failures_total"


@pytest.fixture(scope="module")
def module_harness(redis_server, tmp_path_factory):
    engine = {"slots": 2, "memory-adapters": 6, "disk-load-s": 0.01, "slot-load-s": 0.01}
    with running_agent(
        redis_server, tmp_path_factory.mktemp("agent"), engine=engine,
        engine_slots=2, engine_memory_adapters=6, prefetch_evict_idle_s=60, revocation_drain_timeout_s=3,
    ) as harness:  # fmt: skip
        yield harness


@pytest.fixture
def harness(module_harness):
    module_harness.engine.faults()
    module_harness.engine.tiers(dirty=[], stuck=[], absent=[])
    yield module_harness
    assert module_harness.agent.process.poll() is None
    assert "Traceback" not in module_harness.agent.log.read_text()


def test_each_change_of_the_residency_is_published(harness):
    name = engine_name()
    harness.ask(name)
    residency = wait_until(lambda: (found := harness.residency()) and name in found.slots and found, what="residency")
    assert name in residency.memory
    assert name.partition("@")[2] in residency.disk
    status = wait_until(lambda: (s := harness.status()) and s.residency_version == residency.version and s)
    assert (status.rank_max, status.memory_adapters, status.slots) == (16, 6, 2)
    assert harness.client.pttl(redis_keys.replica_residency(REPLICA)) > 0
    harness.client.delete(redis_keys.replica_residency(REPLICA))  # simulates a data loss of Redis
    wait_until(lambda: harness.residency() == residency, what="residency to be written again")
    assert harness.agent.metric("tenora_replica_stall_seconds_count", '{to="slot"}') >= 1
    assert harness.agent.metric("tenora_replica_load_seconds_count", '{to="memory"}') >= 1
    assert harness.agent.metric("tenora_replica_resident_adapters", '{tier="slot"}') >= 1


def test_a_revoked_adapter_leaves_every_tier_before_its_receipt_and_stays_refused(harness):
    adapter = new_id("ad")
    names = tuple(engine_name(adapter) for _ in range(2))
    other = engine_name()
    for name in (*names, other):
        harness.ask(name)
    elsewhere = harness.revoke(engine_name(), base_model="another")
    revocation = harness.revoke(*names)
    receipt = wait_until(lambda: harness.removed(revocation), what="a receipt")
    assert (receipt.boot_id, receipt.in_slots, receipt.in_memory, receipt.on_disk) == (
        harness.status().boot_id, (), (), (),
    )  # fmt: skip
    truth = harness.engine.control("GET", "/residency")
    held = {slot["name"] for slot in truth["slots"]} | {each["name"] for each in truth["memory"]}
    assert not held & set(names)
    assert not set(truth["disk"]) & {name.partition("@")[2] for name in names}
    assert other in held
    assert adapter in truth["revoked"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        harness.ask(names[0])
    refused.value.close()
    assert refused.value.code == 404
    assert harness.receipt(elsewhere) is None
    harness.publisher.put("revocations", revocation.id, None)  # lifted: the adapter may be served again
    wait_until(lambda: adapter not in harness.inventory()["revoked"], what="the lifting")
    assert harness.ask(names[0])["choices"]


def test_running_requests_of_a_revoked_adapter_drain_and_the_slow_ones_are_aborted(harness):
    quick, slow = engine_name(), engine_name()
    answers = {}
    for name, interval in ((slow, 0.5), (quick, 0.05)):
        harness.engine.faults(times=1, output_tokens=30, token_interval_s=interval)
        threading.Thread(
            target=lambda name=name: answers.update({name: harness.ask(name, tokens=30)}), daemon=True
        ).start()
        wait_until(lambda name=name: any(name == line.get("model") for line in harness.engine.lines()))
    drained, ended = harness.revoke(quick), harness.revoke(slow)
    receipt = wait_until(lambda: harness.receipt(ended), what="the draining report of a revocation")
    assert receipt.state == "draining"
    receipt = wait_until(lambda: harness.removed(drained), what="the drained one's receipt")
    assert (receipt.drained_requests, receipt.aborted_requests) == (1, 0)
    receipt = wait_until(lambda: harness.removed(ended), what="the ended one's receipt")
    assert (receipt.drained_requests, receipt.aborted_requests) == (0, 1)
    wait_until(lambda: len(answers) == 2)
    assert answers[quick]["usage"]["completion_tokens"] == 30
    assert answers[slow]["usage"]["completion_tokens"] < 30


@pytest.mark.parametrize("left", ["stuck", "dirty"])
def test_no_receipt_while_the_engine_has_copies_left(harness, left):
    name = engine_name()
    harness.ask(name)
    harness.engine.tiers(**({"stuck": [name]} if left == "stuck" else {"dirty": [0, 1]}))
    before = harness.agent.metric(ATTEMPTS, '{result="left"}')
    revocation = harness.revoke(name)
    wait_until(lambda: harness.agent.metric(ATTEMPTS, '{result="left"}') >= before + 2, what="two attempts")
    assert harness.receipt(revocation).state == "draining"
    harness.engine.tiers(stuck=[], dirty=[])
    assert wait_until(lambda: harness.removed(revocation), what="the receipt").in_slots == ()


def test_files_leased_by_an_adapter_without_a_route_do_not_delay_a_receipt(harness):
    digest = secrets.token_hex(32)
    mine, unrouted = (f"{new_id('ad')}@{digest}" for _ in range(2))
    for name in (mine, unrouted):
        harness.ask(name)
    first = harness.revoke(mine)
    assert wait_until(lambda: harness.removed(first), what="the receipt").on_disk == (digest,)
    last = harness.revoke(unrouted)
    assert wait_until(lambda: harness.removed(last), what="the last one's").on_disk == ()
    assert digest not in harness.inventory()["disk"]


def test_receipts_and_refusals_survive_data_loss_in_redis(harness):
    name = engine_name()
    revocation = harness.revoke(name)
    wait_until(lambda: harness.removed(revocation))
    harness.client.delete(redis_keys.revocation_receipts(revocation.id), redis_keys.SNAPSHOT_META)
    harness.client.delete(redis_keys.snapshot("revocations"))
    before = harness.agent.metric(FAILURES, '{task="revocations"}')
    wait_until(
        lambda: harness.agent.metric(FAILURES, '{task="revocations"}') >= before + 2, what="the loss to be noticed"
    )
    assert name.partition("@")[0] in harness.inventory()["revoked"]  # without a snapshot, revocations stay in force
    harness.publisher.rebuild()
    harness.publisher.put("revocations", revocation.id, revocation)
    assert wait_until(lambda: harness.removed(revocation), what="the receipt again").on_disk == ()
