"""The heartbeat says how many requests run and wait on an engine, and how full its KV cache is."""

from concurrent.futures import ThreadPoolExecutor

from tests.conftest import wait_until
from tests.fixtures.engine.agent_harness import engine_name, running_agent


def test_a_request_waits_while_the_kv_cache_is_full_and_runs_when_pages_return(redis_server, tmp_path):
    with running_agent(redis_server, tmp_path, engine={"pages": 2, "block-tokens": 16}) as room:
        pages = room.status().pages_total
        room.engine.faults(held=True)
        with ThreadPoolExecutor(2) as callers:
            answers = [callers.submit(room.ask, engine_name()) for _ in range(2)]
            wait_until(lambda: load(room) == (1, 1), what="one request to run and one to wait")
            assert room.status().pages_free < pages
            room.engine.release(1)
            wait_until(lambda: load(room) == (1, 0), what="the second request to run")
            room.engine.release(1)
            assert all(answer.result()["usage"]["completion_tokens"] == 2 for answer in answers)
        wait_until(lambda: load(room) == (0, 0) and room.status().pages_free == pages, what="an idle engine")


def load(room) -> tuple[int, int]:
    status = room.status()
    return status.running_requests, status.waiting_requests
