"""What an engine counted for requests that have ended: by tenant and hour, and by id where their end may be unseen."""

from types import SimpleNamespace

import pytest

from core.contracts.engine_usage import EngineUsageHour
from core.ids import first_id_of_ms, new_id
from data_plane.engine.kv_table import KvTableReader
from data_plane.engine.middleware import ended_requests
from data_plane.engine.middleware.aborts import RunningRequest
from data_plane.engine.middleware.ended_requests import EndedRequests
from data_plane.engine.middleware.vllm_frontend import VllmFrontend
from tests.fixtures.engine.middleware_harness import OutputProcessor

HOUR_MS = 494_000 * 3_600_000


class Engine:
    """vLLM's front end, whose aborts end a request's sequences."""

    def __init__(self, run_dir, **limits) -> None:
        self.processor = OutputProcessor()
        self.aborted: list[list[str]] = []
        client = SimpleNamespace(output_processor=self.processor, abort=self.abort)
        self.front_end = VllmFrontend(SimpleNamespace(engine_client=client, openai_serving_models=None))
        self.ended = EndedRequests(KvTableReader(run_dir), **({"hours_max": 100, "requests_max": 100} | limits))
        self.closing = False

    async def abort(self, request_ids) -> None:
        self.aborted.append(list(request_ids))
        for request_id in request_ids:
            self.processor.end(*list(self.processor.external_req_ids.get(request_id, ())))

    async def receive(self):
        raise AssertionError("nothing is read")

    @property
    def connection(self):
        """uvicorn's ``receive``: a method of an object that has the transport."""

        class Cycle:
            transport = SimpleNamespace(is_closing=lambda: self.closing)

            async def receive(self):
                raise AssertionError("nothing is read")

        return Cycle().receive

    def run(self, request_id: str, tenant_id: str | None = "tn_1", running=None, connection=None):
        running = running or RunningRequest()
        connection = connection or self.connection
        return self.ended.counted(f"chatcmpl-{request_id}", request_id, tenant_id, connection, running, self.front_end)

    async def answer(self, request_id: str, tenant_id: str = "tn_1", tokens: int = 1, **options) -> None:
        """A request whose one sequence ends after so many tokens."""
        async with self.run(request_id, tenant_id, **options):
            self.start(request_id, "s")
            self.processor.produce("s", tokens)
            self.processor.end("s")

    def start(self, request_id: str, *sequences: str, prompt: int = 10) -> None:
        for each in sequences:
            self.processor.add_request(
                SimpleNamespace(request_id=each, external_req_id=f"chatcmpl-{request_id}", prompt_len=prompt)
            )


@pytest.fixture
def engine(tmp_path):
    return Engine(tmp_path)


def id_at(ms: int) -> str:
    return first_id_of_ms("req", ms)


async def test_each_sequences_prompt_and_output_count_once_its_first_token_came(engine):
    request_id = id_at(HOUR_MS + 5)
    async with engine.run(request_id):
        engine.start(request_id, "a", "b", "c")
        engine.processor.produce("a", 3)
        engine.processor.end("a")
        engine.processor.produce("b", 4)
        engine.processor.end("b", "c")
    found = engine.ended.collect(0, at_once=True)
    assert found.hours == (
        EngineUsageHour(
            tenant_id="tn_1", hour_ms=HOUR_MS, requests=1, prompt_tokens=20, output_tokens=7, kv_unmeasured_requests=1
        ),
    )
    assert found.requests == ()
    assert engine.aborted == []


async def test_all_prompts_of_a_completion_are_counted_and_aborted_as_one_request(engine):
    request_id = id_at(HOUR_MS)
    engine_id = f"cmpl-{request_id}-0"
    async with engine.ended.counted(
        engine_id, request_id, "tn_1", engine.connection, RunningRequest(), engine.front_end
    ):
        for index, name in enumerate("abc"):
            vllm_id = f"cmpl-{request_id}-{index}"
            engine.processor.add_request(
                SimpleNamespace(request_id=name, external_req_id=vllm_id, prompt_len=10 * (index + 1))
            )
        engine.processor.produce("b", 4)
        engine.processor.produce("c", 1)
        engine.processor.end("b")
        assert engine.front_end.sequences(engine_id) == ["a", "c"]
    assert engine.front_end.sequences(engine_id) == []
    (ended,) = engine.ended.collect(0, at_once=True).requests
    assert (ended.request_id, ended.prompt_tokens, ended.output_tokens) == (request_id, 20 + 30, 5)


async def test_counts_are_by_tenant_and_by_the_hour_of_the_requests_id(engine):
    for tenant, ms in (
        ("tn_1", HOUR_MS),
        ("tn_1", HOUR_MS + 3_599_999),
        ("tn_1", HOUR_MS + 3_600_000),
        ("tn_2", HOUR_MS),
    ):
        await engine.answer(id_at(ms), tenant)
    hours = {(hour.tenant_id, hour.hour_ms): hour.requests for hour in engine.ended.collect(0, at_once=True).hours}
    assert hours == {("tn_1", HOUR_MS): 2, ("tn_1", HOUR_MS + 3_600_000): 1, ("tn_2", HOUR_MS): 1}


async def test_a_request_is_counted_a_moment_after_its_end(engine, monkeypatch):
    now = SimpleNamespace(value=100.0)
    monkeypatch.setattr(ended_requests.time, "monotonic", lambda: now.value)
    await engine.answer(new_id("req"), tokens=2)
    assert engine.ended.collect(0).hours == ()
    now.value += 1.0
    (hour,) = engine.ended.collect(0).hours
    assert hour.output_tokens == 2


async def test_a_request_whose_gateway_died_is_aborted_and_reported_by_its_id(engine):
    """vLLM may notice later that the connection broke; what it produced until then would be in its counters alone."""
    request_id = new_id("req")
    async with engine.run(request_id):
        engine.start(request_id, "s")
        engine.processor.produce("s", 64)
    assert engine.aborted == [[f"chatcmpl-{request_id}"]]
    (ended,) = engine.ended.collect(0, at_once=True).requests
    assert (ended.request_id, ended.tenant_id) == (request_id, "tn_1")
    assert (ended.prompt_tokens, ended.output_tokens, ended.kv_page_ms) == (10, 64, None)


async def test_an_end_that_was_sent_to_a_closed_connection_is_reported_by_its_id(engine):
    request_id = new_id("req")
    await engine.answer(request_id)
    engine.closing = True
    assert [each.request_id for each in engine.ended.collect(0, at_once=True).requests] == [request_id]


async def test_without_knowledge_of_the_connection_every_end_is_reported(engine):
    await engine.answer(new_id("req"), connection=engine.receive)
    assert len(engine.ended.collect(0, at_once=True).requests) == 1


async def test_an_aborted_answer_is_reported_by_its_id(engine):
    request_id, running = new_id("req"), RunningRequest()
    async with engine.run(request_id, running=running):
        engine.start(request_id, "s")
        engine.processor.produce("s", 3)
        engine.processor.end("s")
        running.aborted_prefills = []
    assert len(engine.ended.collect(0, at_once=True).requests) == 1


async def test_an_error_of_the_application_is_counted_too(engine):
    request_id = new_id("req")

    async def fail() -> None:
        async with engine.run(request_id):
            engine.start(request_id, "s")
            engine.processor.produce("s", 3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    found = engine.ended.collect(0, at_once=True)
    assert (found.hours[0].output_tokens, len(found.requests)) == (3, 1)


async def test_the_agents_own_requests_and_those_that_never_reached_vllm_do_not_count(engine):
    request_id = new_id("req")
    async with engine.run(request_id, None):
        engine.start(request_id, "probe")
    async with engine.run("local-1"):
        engine.start("local-1", "other")
    async with engine.run(new_id("req")):
        pass
    assert engine.ended.collect(0, at_once=True).hours == ()


async def test_only_what_is_new_is_collected_again(engine):
    versions = []
    for _ in range(3):
        await engine.answer(new_id("req"), f"tn_{len(versions)}", connection=engine.receive)
        versions.append(engine.ended.collect(0, at_once=True).version)
    newer = engine.ended.collect(versions[1])
    assert ([each.tenant_id for each in newer.hours], len(newer.requests)) == (["tn_2"], 1)
    assert engine.ended.collect(versions[2]).hours == ()


async def test_beyond_the_limit_tenants_are_counted_together_and_old_hours_forgotten(tmp_path):
    engine = Engine(tmp_path, hours_max=2)
    for tenant in ("tn_1", "tn_2", "tn_3", "tn_4"):
        await engine.answer(id_at(HOUR_MS), tenant)
    hours = {hour.tenant_id: hour.requests for hour in engine.ended.collect(0, at_once=True).hours}
    assert hours == {"tn_1": 1, "tn_2": 1, "": 2}
    await engine.answer(id_at(HOUR_MS + 7 * 3_600_000), "tn_9")
    assert {hour.tenant_id for hour in engine.ended.collect(0, at_once=True).hours} == {"tn_9"}
