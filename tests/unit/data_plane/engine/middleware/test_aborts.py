"""An abort ends a request once, and the request's answer says how much of its prompt had been computed."""

import asyncio
import json

import pytest

from data_plane.engine.middleware.middleware import ABORT_PATH
from tests.fixtures.engine.middleware_harness import running_middleware

ADAPTER = f"ad_{'0' * 26}@{'a' * 64}"


@pytest.fixture
async def harness(tmp_path):
    async with running_middleware(tmp_path, abort_report_timeout_s=20) as harness:
        harness.generation.hold = True
        yield harness


class Running:
    """A request for the base model that vLLM runs until it is aborted."""

    def __init__(self, harness, *sequences, prefilling=True, stream=True):
        self.harness, self.id = harness, "chatcmpl-req_1"
        harness.client.output_processor.add(self.id, *sequences, prefilling=prefilling)
        self._asking = asyncio.create_task(
            harness.ask("POST", "/v1/chat/completions", {"model": "base", "stream": stream}, x_request_id="req_1")
        )

    async def abort(self):
        await self.harness.generation.until_started(1)
        return await self.harness.ask("POST", ABORT_PATH, {"request_ids": [self.id]})

    async def answer(self):
        return await asyncio.wait_for(self._asking, 20)


async def test_a_stream_reports_the_prompt_tokens_that_were_computed_and_cached(harness):
    harness.client.engine_core.progress = {"s0": (512, 128)}
    running = Running(harness, "s0")
    await running.abort()
    body = (await running.answer()).body
    assert body.endswith(b": tenora-aborted [[512,128]]\n\ndata: [DONE]\n\n")
    assert harness.client.aborted == ["s0"]


async def test_another_answer_reports_them_in_a_header(harness):
    harness.client.engine_core.progress = {"s0": (512, 0)}
    running = Running(harness, "s0", stream=False)
    await running.abort()
    assert json.loads((await running.answer()).headers["x-tenora-aborted"]) == [[512, 0]]


async def test_only_sequences_without_a_token_are_reported(harness):
    harness.client.engine_core.progress = {"s0": (600, 0), "s1": (64, 32)}
    running = Running(harness, "s1")
    harness.client.output_processor.add(running.id, "s0", prefilling=False)
    await running.abort()
    assert b": tenora-aborted [[64,32]]\n\n" in (await running.answer()).body
    assert sorted(harness.client.aborted) == ["s0", "s1"]


async def test_a_sequence_that_has_ended_in_the_engine_is_left_to_end_by_itself(harness):
    running = Running(harness, "s0")
    await running.abort()
    await asyncio.wait_for(_until(lambda: harness.client.engine_core.calls), 20)
    assert harness.client.aborted == []
    harness.client.ends[running.id].set()
    assert b": tenora-aborted []\n\n" in (await running.answer()).body


async def test_an_answer_without_an_abort_reports_nothing(harness):
    running = Running(harness, "s0")
    await harness.generation.until_started(1)
    harness.client.ends[running.id].set()
    assert b"tenora-aborted" not in (await running.answer()).body


async def test_repeated_aborts_ask_the_engine_once_at_a_time(harness):
    harness.client.engine_core.progress = {"s0": (512, 0)}
    harness.client.engine_core.step.clear()
    running = Running(harness, "s0")
    for _ in range(5):
        assert (await running.abort()).status == 200
    harness.client.engine_core.step.set()
    assert b": tenora-aborted [[512,0]]\n\n" in (await running.answer()).body
    assert harness.client.engine_core.calls == [["s0"]]


async def test_an_id_that_vllm_does_not_know_yet_is_aborted_by_a_later_attempt(harness):
    running = Running(harness)
    await running.abort()
    harness.client.output_processor.add(running.id, "s0")
    harness.client.engine_core.progress = {"s0": (16, 0)}
    await running.abort()
    assert b": tenora-aborted [[16,0]]\n\n" in (await running.answer()).body


async def test_a_request_ends_without_a_report_when_the_engine_does_not_answer(tmp_path, harness):
    harness.adapters.aborts._report_timeout_s = 0.01
    harness.client.engine_core.step.clear()
    running = Running(harness, "s0")
    await running.abort()
    assert b"tenora-aborted" not in (await running.answer()).body
    assert harness.client.aborted == [running.id]


async def test_a_request_that_waits_for_its_adapter_never_reaches_vllm(harness, monkeypatch):
    waits = asyncio.Event()

    async def fetch(name, tenant):
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(harness.adapters.disk, "fetch", fetch)
    asking = asyncio.create_task(harness.chat(ADAPTER, x_request_id="req_1"))
    await asyncio.wait_for(waits.wait(), 20)
    await harness.ask("POST", ABORT_PATH, {"request_ids": ["chatcmpl-req_1"]})
    answer = await asyncio.wait_for(asking, 20)
    assert (answer.status, answer.code) == (503, "request_aborted")
    assert harness.generation.started == []
    assert harness.adapters.loader.names == frozenset()


async def _until(condition):
    while not condition():  # noqa: ASYNC110 - the stand-in sets no event
        await asyncio.sleep(0.001)
