"""Revoked adapters on a replica: refused at once, and gone from every tier before there is a receipt."""

import secrets
import threading
import urllib.error

import pytest

from core import redis_keys
from core.ids import new_id
from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import REPLICA, engine_name, room_of

ATTEMPTS, FAILURES = "tenora_replica_revocations_total", "tenora_replica_task_failures_total"


@pytest.fixture(scope="module")
def module_room(redis_server, tmp_path_factory):
    engine = {"slots": 2, "memory-adapters": 6, "disk-load-s": 0.01, "slot-load-s": 0.01}
    with room_of(
        redis_server, tmp_path_factory.mktemp("agent"), engine=engine,
        engine_slots=2, engine_memory_adapters=6, prefetch_evict_idle_s=60, revocation_drain_timeout_s=3,
    ) as room:  # fmt: skip
        yield room


@pytest.fixture
def room(module_room):
    module_room.engine.faults()
    module_room.engine.tiers(dirty=[], stuck=[], absent=[])
    yield module_room
    assert module_room.agent.process.poll() is None
    assert "Traceback" not in module_room.agent.log.read_text()


def test_where_adapters_lie_is_published_as_it_changes(room):
    name = engine_name()
    room.ask(name)
    residency = wait_until(lambda: (found := room.residency()) and name in found.slots and found, what="residency")
    assert name in residency.memory
    assert name.partition("@")[2] in residency.disk
    status = wait_until(lambda: (s := room.status()) and s.residency_version == residency.version and s)
    assert (status.rank_max, status.memory_adapters, status.slots) == (16, 6, 2)
    assert room.client.pttl(redis_keys.replica_residency(REPLICA)) > 0
    room.client.delete(redis_keys.replica_residency(REPLICA))  # as if Redis had lost it
    wait_until(lambda: room.residency() == residency, what="residency to be written again")
    assert room.agent.metric("tenora_replica_stall_seconds_count", '{to="slot"}') >= 1
    assert room.agent.metric("tenora_replica_load_seconds_count", '{to="memory"}') >= 1
    assert room.agent.metric("tenora_replica_resident_adapters", '{tier="slot"}') >= 1


def test_a_revoked_adapter_leaves_every_tier_before_its_receipt_and_stays_refused(room):
    adapter = new_id("ad")
    names = tuple(engine_name(adapter) for _ in range(2))
    other = engine_name()
    for name in (*names, other):
        room.ask(name)
    elsewhere = room.revoke(engine_name(), base_model="another")
    revocation = room.revoke(*names)
    receipt = wait_until(lambda: room.removed(revocation), what="a receipt")
    assert (receipt.boot_id, receipt.in_slots, receipt.in_memory, receipt.on_disk) == (
        room.status().boot_id, (), (), (),
    )  # fmt: skip
    truth = room.engine.door("GET", "/residency")
    held = {slot["name"] for slot in truth["slots"]} | {each["name"] for each in truth["memory"]}
    assert not held & set(names)
    assert not set(truth["disk"]) & {name.partition("@")[2] for name in names}
    assert other in held
    assert adapter in truth["revoked"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        room.ask(names[0])
    refused.value.close()
    assert refused.value.code == 404
    assert room.receipt(elsewhere) is None
    room.publisher.put("revocations", revocation.id, None)  # lifted: it may be served again
    wait_until(lambda: adapter not in room.truth()["revoked"], what="the lifting")
    assert room.ask(names[0])["choices"]


def test_running_requests_of_a_revoked_adapter_drain_and_the_late_ones_are_ended(room):
    quick, slow = engine_name(), engine_name()
    answers = {}
    for name, interval in ((slow, 0.5), (quick, 0.05)):
        room.engine.faults(times=1, output_tokens=30, token_interval_s=interval)
        threading.Thread(
            target=lambda name=name: answers.update({name: room.ask(name, tokens=30)}), daemon=True
        ).start()
        wait_until(lambda name=name: any(name == line.get("model") for line in room.engine.lines()))
    drained, ended = room.revoke(quick), room.revoke(slow)
    receipt = wait_until(lambda: room.receipt(ended), what="the first word of a revocation")
    assert receipt.state == "draining"
    receipt = wait_until(lambda: room.removed(drained), what="the drained one's receipt")
    assert (receipt.drained_requests, receipt.aborted_requests) == (1, 0)
    receipt = wait_until(lambda: room.removed(ended), what="the ended one's receipt")
    assert (receipt.drained_requests, receipt.aborted_requests) == (0, 1)
    wait_until(lambda: len(answers) == 2)
    assert answers[quick]["usage"]["completion_tokens"] == 30
    assert answers[slow]["usage"]["completion_tokens"] < 30


@pytest.mark.parametrize("left", ["stuck", "dirty"])
def test_no_receipt_while_the_engine_has_anything_left(room, left):
    name = engine_name()
    room.ask(name)
    room.engine.tiers(**({"stuck": [name]} if left == "stuck" else {"dirty": [0, 1]}))
    before = room.agent.metric(ATTEMPTS, '{result="left"}')
    revocation = room.revoke(name)
    wait_until(lambda: room.agent.metric(ATTEMPTS, '{result="left"}') >= before + 2, what="two attempts")
    assert room.receipt(revocation).state == "draining"
    room.engine.tiers(stuck=[], dirty=[])
    assert wait_until(lambda: room.removed(revocation), what="the receipt").in_slots == ()


def test_a_digest_that_another_adapter_serves_may_stay_on_the_disk(room):
    tenant = room.publisher.tenant()
    route = room.publisher.adapter(tenant, "twin")
    mine = f"{new_id('ad')}@{route.revisions[route.newest].digest}"
    for name in (mine, route.engine_name(route.newest)):
        room.ask(name)
    revocation = room.revoke(mine)
    receipt = wait_until(lambda: room.removed(revocation), what="the receipt")
    assert receipt.on_disk == (mine.partition("@")[2],)
    assert room.ask(route.engine_name(route.newest))["choices"]


def test_files_that_an_adapter_without_a_route_holds_do_not_keep_a_receipt_back(room):
    digest = secrets.token_hex(32)
    mine, unrouted = (f"{new_id('ad')}@{digest}" for _ in range(2))
    for name in (mine, unrouted):
        room.ask(name)
    first = room.revoke(mine)
    assert wait_until(lambda: room.removed(first), what="the receipt").on_disk == (digest,)
    last = room.revoke(unrouted)
    assert wait_until(lambda: room.removed(last), what="the last one's").on_disk == ()
    assert digest not in room.truth()["disk"]


def test_receipts_and_refusals_survive_what_redis_loses(room):
    name = engine_name()
    revocation = room.revoke(name)
    wait_until(lambda: room.removed(revocation))
    room.client.delete(redis_keys.revocation_receipts(revocation.id), redis_keys.SNAPSHOT_META)
    room.client.delete(redis_keys.snapshot("revocations"))
    before = room.agent.metric(FAILURES, '{task="revocations"}')
    wait_until(lambda: room.agent.metric(FAILURES, '{task="revocations"}') >= before + 2, what="the loss to be noticed")
    assert name.partition("@")[0] in room.truth()["revoked"]  # nothing published is no permission
    room.publisher.rebuild()
    room.publisher.put("revocations", revocation.id, revocation)
    assert wait_until(lambda: room.removed(revocation), what="the receipt again").on_disk == ()
