"""Replicas placed on a Ray cluster: they come and go as wanted, and survive what may die there."""

import contextlib
import time

import httpx
import msgspec
import psutil
import pytest

from core import redis_keys
from core.contracts.usage import UsageEvent
from tests.conftest import TLS, wait_until
from tests.fixtures.ray.callers import Callers, calling
from tests.fixtures.ray.cluster import START_S, replica_processes

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

OPTIONS = ("--token-interval-s", "0.05", "--pages", "40960")
STREAMS = 50


@pytest.fixture
def placed(stack):
    """Three ready replicas of one revision, and nothing of an earlier test."""
    stack.valkey.client.delete(redis_keys.USAGE_STREAM)
    stack.want_nothing()
    with stack.placer(*OPTIONS):
        stack.want("chat", {1: 3})
        stack.wait_ready(3)
        yield stack


@contextlib.contextmanager
def streams(stack, *, tokens: int = 60):
    key = stack.publisher.key(stack.publisher.tenant())

    def is_known() -> bool:
        asked = httpx.get(f"{stack.gateway.url}/v1/models", headers={"authorization": f"Bearer {key}"}, verify=TLS)
        return asked.status_code == 200

    wait_until(is_known, what="the gateway to know the key")
    with calling(Callers(stack.gateway.url, key, "tiny-chat", tokens), STREAMS) as made:
        wait_until(lambda: len(made.firsts) >= STREAMS, what="streams", timeout_s=60)
        yield made


def failed_on(stack) -> set[str]:
    """Replicas with requests that did not end well."""
    entries = stack.valkey.client.xrange(redis_keys.USAGE_STREAM)
    events = [msgspec.json.decode(fields[b"event"], type=UsageEvent) for _, fields in entries]
    return {event.replica_id for event in events if event.outcome != "done"}


def test_a_pool_grows_shrinks_moves_to_another_revision_and_ends_without_breaking_a_stream(stack):
    stack.want_nothing()
    with stack.placer(*OPTIONS):
        stack.want("chat", {1: 1})
        stack.wait_ready(1)
        with streams(stack) as following:
            stack.want("chat", {1: 3})
            stack.wait_ready(3)
            stack.want("chat", {1: 2})
            stack.wait_ready(2)
            stack.want("chat", {1: 2, 2: 1})
            stack.wait_ready(3)
            stack.want("chat", {2: 1})
            wait_until(lambda: len(stack.replicas()) == 1, what="the old revision to go", timeout_s=60)
        assert following.broken == []
        assert following.whole > STREAMS
        stack.want("chat", {})
        wait_until(lambda: not stack.replicas(), what="no replica", timeout_s=60)
    assert replica_processes() == {}


def test_streams_of_two_minutes_outlive_a_scale_down_and_another_revision(stack):
    stack.want_nothing()
    with stack.placer("--token-interval-s", "0.5", "--pages", "40960"):
        wait_until(lambda: not stack.replicas(), what="no fast replica", timeout_s=60)
        stack.want("slow", {1: 3})
        stack.wait_ready(3)
        with streams(stack, tokens=240) as following:
            following.end()  # each caller's first stream is its last
            stack.want("slow", {1: 2})
            wait_until(lambda: len(stack.ready()) == 2, what="a replica that drains", timeout_s=START_S)
            wait_until(lambda: len(stack.replicas()) == 2, what="its end", timeout_s=150)
        assert (following.broken, following.whole) == ([], STREAMS)
        with streams(stack, tokens=240) as following:
            following.end()
            stack.want("slow", {1: 2, 2: 1})
            stack.wait_ready(3)
            stack.want("slow", {2: 1})
        assert (following.broken, following.whole) == ([], STREAMS)
        stack.want("slow", {})
        wait_until(lambda: not stack.replicas(), what="no replica", timeout_s=60)


def test_of_a_killed_node_only_its_own_streams_break_and_a_new_node_gets_a_replica(placed):
    with streams(placed) as following:
        killed_at = time.monotonic()
        (lost,) = placed.ray.kill_node()
        wait_until(lambda: any(first > killed_at for first in following.firsts), what="a first token after the kill")
        served_after_s = min(first for first in following.firsts if first > killed_at) - killed_at
        placed.ray.add_node()
        wait_until(lambda: lost not in placed.ready() and len(placed.ready()) == 3, timeout_s=START_S, what="a new one")
    assert served_after_s < 2
    assert failed_on(placed) <= {lost}
    assert len(following.broken) < STREAMS


def test_a_killed_actor_takes_its_replica_with_it_and_is_replaced(placed):
    with streams(placed):
        lost, replica = next(iter(replica_processes().items()))
        replica.parent().kill()
        psutil.wait_procs([replica], timeout=5)
        assert not replica.is_running(), "the kernel ends it with its actor"
        wait_until(lambda: lost not in placed.ready() and len(placed.ready()) == 3, timeout_s=START_S, what="a new one")
    assert failed_on(placed) <= {lost}


def test_a_replica_that_ends_is_replaced(placed):
    lost, replica = next(iter(replica_processes().items()))
    replica.kill()
    wait_until(lambda: lost not in placed.ready() and len(placed.ready()) == 3, timeout_s=START_S, what="a new one")


def test_a_killed_controller_breaks_nothing_and_the_next_one_scales(placed):
    with streams(placed) as following:
        (controller,) = [each for each in psutil.process_iter(["cmdline"]) if _is_controller(each)]
        controller.kill()
        placed.want("chat", {1: 2})
        placed.wait_ready(2)
    assert following.broken == []


def _is_controller(process: psutil.Process) -> bool:
    command = process.info["cmdline"] or ("",)
    return command[0].startswith("ray::ServeController")


def test_a_head_that_is_away_breaks_nothing_and_scales_when_it_is_back(placed):
    with streams(placed) as following:
        placed.ray.cluster.head_node.kill_gcs_server()
        ready = set(placed.ready())
        placed.want("chat", {1: 2})
        whole = following.whole
        wait_until(lambda: following.whole > whole + STREAMS, timeout_s=60, what="streams without a head")
        assert set(placed.ready()) == ready
        placed.ray.cluster.head_node.start_gcs_server()
        placed.wait_ready(2)
    assert following.broken == []


def test_replicas_run_on_without_a_placer_and_the_next_one_takes_over(placed):
    (placer,) = [each for each in psutil.process_iter(["cmdline"]) if "ray-placer" in (each.info["cmdline"] or ())]
    ready = set(placed.ready())
    placer.kill()
    with placed.placer(*OPTIONS):
        placed.want("chat", {1: 3, 2: 0})
        placed.want("empty", {1: 0})
        assert set(placed.ready()) == ready
        placed.want("chat", {1: 2})
        placed.want("third", {1: 1})
        wait_until(lambda: len({*placed.ready()} - ready) == 1, what="a pool after the empty one", timeout_s=START_S)
        placed.wait_ready(3)
        placed.want("third", {})
        placed.wait_ready(2)


def test_a_replica_that_is_never_ready_starts_again_after_longer_pauses_and_holds_up_no_other_pool(placed):
    placed.want("chat", {1: 1})
    placed.wait_ready(1)
    placed.want("broken", {1: 1}, TENORA_POOL="broken", TENORA_POOL_REVISION="0" * 64)
    wait_until(
        lambda: [each.reason for each in placed.replicas().values() if each.state == "failed"],
        what="a failed start with its reason", timeout_s=START_S,
    )  # fmt: skip
    placed.want("chat", {1: 2})
    placed.wait_ready(2)
    placed.want("broken", {})
    wait_until(lambda: len(replica_processes()) == 2, timeout_s=60, what="the failing copy to be given up")
