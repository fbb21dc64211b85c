"""The middleware reports a request's KV page-time by the id that its answer carries: at its end, and on the way."""

from types import SimpleNamespace

import pytest

from data_plane.engine import kv_meter, kv_table
from data_plane.engine.kv_meter import KvMeter
from data_plane.engine.kv_table import KvTableWriter
from tests.fixtures.engine.middleware_harness import running_middleware

SEQUENCE = "chatcmpl-req_1-0a1b2c3d"


class Running:
    """The harness, and an engine that has run one sequence of two pages for some milliseconds."""

    def __init__(self, harness, clock):
        self.harness, self.clock = harness, clock
        self.meter = KvMeter(KvTableWriter(harness.settings.run_dir), block_tokens=32)
        request = SimpleNamespace(num_computed_tokens=20)
        scheduled = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=SEQUENCE)],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[]),
        )
        self.meter.record_schedule(scheduled, {SEQUENCE: request})

    def wait(self, milliseconds):
        self.clock.now += milliseconds


@pytest.fixture
async def running(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=1000)
    for module in (kv_meter, kv_table):
        monkeypatch.setattr(module, "now_ms", lambda: clock.now)
    async with running_middleware(tmp_path) as harness:
        yield Running(harness, clock)


async def test_an_answer_reports_what_its_request_has_held(running):
    running.wait(50)
    running.meter.record_free(SEQUENCE)
    running.wait(1000)
    whole = await running.harness.chat("tiny-instruct", header=False, x_request_id="req_1")
    assert whole.headers["x-tenora-kv-page-ms"] == "100"
    stream = await running.harness.chat("tiny-instruct", header=False, stream=True, x_request_id="req_1")
    assert stream.body.endswith(b": tenora-kv-page-ms 100\n\ndata: [DONE]\n\n")


async def test_an_answer_that_the_engine_has_not_measured_has_no_report(running):
    whole = await running.harness.chat("tiny-instruct", header=False, x_request_id="req_other")
    assert "x-tenora-kv-page-ms" not in whole.headers


async def test_the_progress_of_a_whole_answer_contains_what_it_holds_until_now(running):
    aborts = running.harness.adapters.aborts
    with aborts.track("chatcmpl-req_1") as one, aborts.track("chatcmpl-early") as early:
        early.states = [SimpleNamespace(is_prefilling=True)]
        tokens = SimpleNamespace(num_output_tokens=lambda: 3)
        one.states = [SimpleNamespace(is_prefilling=False, prompt_len=17, num_cached_tokens=4, detokenizer=tokens)]
        running.wait(50)
        body = {"request_ids": ["chatcmpl-req_1", "chatcmpl-early", "chatcmpl-gone"]}
        answer = await running.harness.ask("POST", "/tenora/v1/progress", body)
    assert answer.json["requests"] == {"chatcmpl-req_1": {"sequences": [[17, 4, 3]], "kv_page_ms": 100}}
