"""An engine whose /health is well and that generates nothing: its agent notices, nobody is sent there, and either it
recovers or it is replaced. One that is only busy is left alone.
"""

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import openai
import pytest

from core import redis_keys
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, Room, room_of
from tests.integration.data_plane.conftest import BRISK, chat

BRISK_PROBES = {"probe_every_s": 0.5, "probe_timeout_s": 1.0, "probe_failures_max": 20}
FOUND_S = 0.5 + 1.0 + 3 * 0.1  # and three heartbeats of the room's agent
MARGIN_S = 8.0  # of a machine that does other things as well
PROBES = "tenora_replica_probes_total"


@contextlib.contextmanager
def room_of_its_own(redis_url, folder, **settings) -> Iterator[Room]:
    with room_of(redis_url, folder, **{**BRISK_PROBES, **settings}) as room:
        yield room
        assert "Traceback" not in room.agent.log.read_text()


@contextlib.contextmanager
def sdk_of(room, folder, redis_url) -> Iterator[openai.OpenAI]:
    """A tenant's client of a gateway before the room's replica; it has been served once."""
    key = room.publisher.key(room.publisher.tenant())
    with (
        processes.gateway(folder, redis_url, **BRISK) as gateway,
        openai.OpenAI(base_url=gateway.url + "/v1", api_key=key, max_retries=0, timeout=20) as client,
    ):
        wait_until(lambda: outcome(client) == "served", what="an answer")
        yield client


def outcome(client: openai.OpenAI) -> str:
    """What comes of one stream, which a gateway soon gives up where it never begins: "served", or a refusal's code."""
    try:
        assert list(chat(client, stream=True))
    except openai.APIStatusError as refusal:
        return str(refusal.code)
    return "served"


def is_well(room: Room) -> bool:
    with urllib.request.urlopen(f"{room.engine.url}/health", timeout=5) as response:
        return response.status == 200


def asked_by_tenants(room: Room) -> int:
    return sum("messages" in line["body"] for line in room.engine.received())


def becomes(room: Room, state: str, **options) -> None:
    wait_until(
        lambda: (status := room.status()) and status.state == state, what=f"a replica that is {state}", **options
    )


def test_an_engine_that_hangs_gets_no_requests_until_it_generates_again(redis_server, tmp_path):
    with room_of_its_own(redis_server, tmp_path) as room, sdk_of(room, tmp_path, redis_server) as client:
        boot_id = room.status().boot_id
        room.engine.faults(hang=True)
        becomes(room, "unhealthy", timeout_s=FOUND_S + MARGIN_S)
        assert is_well(room)
        wait_until(lambda: outcome(client) == "no_replica", what="the gateway to read the heartbeat")
        before = asked_by_tenants(room)
        assert [outcome(client) for _ in range(3)] == ["no_replica"] * 3
        assert asked_by_tenants(room) == before
        assert room.agent.metric("tenora_replica_ready") == 0
        room.engine.faults()
        becomes(room, "ready", timeout_s=FOUND_S + MARGIN_S)
        wait_until(lambda: outcome(client) == "served", what="an answer of the replica that recovered")
        assert room.status().boot_id == boot_id, "nothing was replaced"


def test_an_engine_that_goes_on_hanging_is_replaced(redis_server, tmp_path):
    with room_of_its_own(redis_server, tmp_path, probe_failures_max=2) as room:
        room.engine.faults(hang=True)
        assert room.agent.process.wait(FOUND_S + 2 + MARGIN_S + 10) == 1  # whoever supervises it starts both anew
        assert room.client.exists(redis_keys.replica(REPLICA)) == 0
        assert room.client.zscore(redis_keys.REPLICAS, REPLICA) is None
        with pytest.raises(urllib.error.URLError):
            is_well(room)
        assert "engine hangs; replacing it" in room.agent.log.read_text()


def test_a_slow_probe_holds_up_no_heartbeat(redis_server, tmp_path):
    """Else the status would expire under the first probe that waits its turn on a busy engine."""
    with room_of_its_own(redis_server, tmp_path, probe_timeout_s=60, status_ttl_s=2, drain_s=1) as room:
        room.engine.faults(hang=True)
        answered = room.agent.metric(PROBES, '{result="ok"}')
        beats = {room.status().heartbeat_ms}
        wait_until(lambda: beats.add(room.status().heartbeat_ms) or max(beats) - min(beats) > 4000, what="heartbeats")
        assert room.agent.metric(PROBES, '{result="ok"}') <= answered + 1, "none was slow"
        assert len(beats) > 5
        assert room.status().state == "ready"


def test_an_engine_that_makes_others_wait_while_tokens_come_is_not_hung(redis_server, tmp_path):
    """A probe that is not answered in time, beside a stream that is: a token each 0.8 s."""
    with room_of_its_own(redis_server, tmp_path, probe_timeout_s=3) as room:
        room.engine.faults(token_interval_s=0.8, output_tokens=10)
        asking = threading.Thread(target=lambda: room.ask("tiny-chat", tokens=10), daemon=True)
        asking.start()
        wait_until(lambda: asked_by_tenants(room), what="the stream")
        room.engine.faults(hang=True)
        wait_until(lambda: room.agent.metric(PROBES, '{result="busy"}') >= 1, what="a probe that gave up")
        room.engine.faults()
        assert room.agent.metric(PROBES, '{result="failed"}') == 0
        assert room.status().state == "ready"
        asking.join()


def test_a_replica_that_is_drained_is_still_so_after_it_recovered(redis_server, tmp_path):
    with room_of_its_own(redis_server, tmp_path) as room:
        room.client.set(redis_keys.replica_drain(REPLICA), 1)
        becomes(room, "draining")
        room.engine.faults(hang=True)
        becomes(room, "unhealthy")
        room.engine.faults()
        seen: set[str] = set()
        wait_until(lambda: seen.add(room.status().state) or "draining" in seen, what="the replica to recover")
        assert seen <= {"unhealthy", "draining"}
