"""What is counted, held and charged while a provider answers, and where its answer ends early."""

import asyncio
import json
import time
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_plane.gateway.api.model_catalog import Target
from data_plane.gateway.providers.attempts import Providers
from data_plane.gateway.upstream.attempt import Dispatch
from data_plane.gateway.upstream.engine_client import ReplicaFailed
from tests.fixtures.gateway.requests import inference_request, replica_status, settings_with
from tests.fixtures.providers.routes import COSTS, provider_route

PROMPT, USAGE = 100, {"prompt_tokens": 90, "completion_tokens": 3}
PROVIDER = provider_route(margin_percent=20)


def event(content: str | None, usage: dict | None = None) -> bytes:
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


class Caller:
    """A client that keeps what it gets."""

    def __init__(self) -> None:
        self.started, self.got, self.hang_up = False, b"", None

    def watch(self, on_gone):
        self.hang_up = on_gone

    def begin(self, _headers, body):
        self.started = True
        return self.push(body)

    def push(self, body):
        self.got += body
        return True


class Answering:
    """A provider's client, its only request and the answer: these bytes, and after them silence."""

    def __init__(self, *pieces: bytes) -> None:
        self.headers = {"content-type": "text/event-stream"}
        self._pieces = pieces
        self.was_sent, self.most_nanos, self.settled = False, 0, []
        self.arrived = asyncio.Event()

    def request(self, _provider, wire, _body, *, most_nanos):
        self._wire, self.most_nanos = wire, most_nanos
        return self

    async def response(self):
        self.was_sent = True
        return self

    async def forward(self, consume):
        for piece in self._pieces:
            consume(self._wire.feed(piece))
        self.arrived.set()
        if not self._wire.done:
            await asyncio.sleep(60)
        return True

    def close(self):
        pass

    async def settle(self, cost_nanos):
        self.settled.append(cost_nanos)


class Breakers:
    """Counts failures."""

    def __init__(self) -> None:
        self.failures = 0

    def failed(self, _replica):
        self.failures += 1


def attempt_at(client: Answering, *, stream: bool, output_max: int = 50, **limits: object):
    request = inference_request(stream=stream, prompt_tokens=PROVIDER.with_margin(PROMPT), max_tokens=output_max)
    base = msgspec.structs.replace(request.target.base, provider=PROVIDER)
    request = msgspec.structs.replace(request, target=Target("m", base, None))
    settings = settings_with(provider_first_event_s=0.1, provider_between_events_s=0.1, **limits)
    dispatch = Dispatch(
        replica_status(), SimpleNamespace(prefilled=int), b"{}", [], asyncio.get_running_loop().time() + 30
    )
    return Providers(None, client, settings).attempt(Caller(), request, dispatch)


@given(tokens=st.integers(0, 10**9), percent=st.integers(0, 100))
def test_a_hold_has_the_margin_above_the_count_which_can_be_read_from_it(tokens, percent):
    route = provider_route(margin_percent=percent)
    held = route.with_margin(tokens)
    assert held * 100 >= tokens * (100 + percent) > (held - 1) * 100
    assert route.without_margin(held) == tokens


async def test_the_ceiling_holds_the_prompt_with_its_margin_and_keeps_what_the_provider_says():
    client = Answering(event("Hello"), event(None, USAGE), b"data: [DONE]\n\n")
    result = await attempt_at(client, stream=False).run(Breakers())
    assert (result.outcome, json.loads(result.ending)["choices"][0]["message"]["content"]) == ("done", "Hello")
    assert client.most_nanos == 120 * COSTS.input_nanos + 50 * COSTS.output_nanos
    assert client.settled == [90 * COSTS.input_nanos + 3 * COSTS.output_nanos]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_checkpoint_has_the_prompt_as_soon_as_the_provider_has_it(stream):
    client = Answering()
    attempt = attempt_at(client, stream=stream)
    assert attempt.running_counts().total_tokens == 0
    running = asyncio.create_task(attempt.run(Breakers()))
    await client.arrived.wait()
    counts = attempt.running_counts()
    assert (counts.input_tokens, counts.output_tokens, counts.counted_here) == (PROMPT, 0, True)
    with pytest.raises(ReplicaFailed):
        await running
    assert attempt.counts().total_tokens == 0


async def test_a_checkpoint_of_a_whole_answer_has_what_arrived():
    client = Answering(event("one "), event("two "))
    attempt = attempt_at(client, stream=False)
    running = asyncio.create_task(attempt.run(Breakers()))
    await client.arrived.wait()
    assert attempt.running_counts().sequences == [(PROMPT, 2)]
    with pytest.raises(ReplicaFailed):
        await running


async def test_a_whole_answer_that_stops_coming_costs_its_tenant_nothing_and_perhaps_the_platform_the_most():
    client, breakers, begun = Answering(event("one ")), Breakers(), time.monotonic()
    attempt = attempt_at(client, stream=False)
    with pytest.raises(ReplicaFailed) as failed:
        await attempt.run(breakers)
    assert time.monotonic() - begun < 5
    assert (failed.value.code, breakers.failures) == ("replica_timeout", 1)
    assert (attempt.counts().total_tokens, client.settled) == (0, [None])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_hangs_up_pays_what_arrived_and_the_platform_perhaps_the_most(stream):
    client = Answering(event("one "))
    attempt = attempt_at(client, stream=stream)
    running = asyncio.create_task(attempt.run(Breakers()))
    await client.arrived.wait()
    attempt._client.hang_up()
    result = await running
    assert (result.outcome, result.counts.sequences, client.settled) == ("client_gone", [(PROMPT, 1)], [None])


async def test_a_whole_answer_that_is_too_large_is_the_callers_and_charged():
    usage = {"prompt_tokens": 90, "completion_tokens": 40}
    client = Answering(*[event("x" * 50)] * 40, event(None, usage), b"data: [DONE]\n\n")
    result = await attempt_at(client, stream=False, response_max_bytes=1024).run(Breakers())
    assert (result.outcome, result.error.code, result.counts.sequences) == ("done", "answer_too_large", [(90, 40)])


async def test_a_stream_may_be_longer_than_a_whole_answer():
    client = Answering(*[event("x" * 50)] * 40, event(None, USAGE), b"data: [DONE]\n\n")
    attempt = attempt_at(client, stream=True, response_max_bytes=1024, output_max=2)
    assert (await attempt.run(Breakers())).outcome == "done"
    assert len(attempt._client.got) > 1024


async def test_a_stream_has_a_bound_for_the_tokens_that_were_allowed():
    client = Answering(*[event("x" * 1000)] * 10, event(None, USAGE), b"data: [DONE]\n\n")
    attempt = attempt_at(client, stream=True, event_max_bytes=2048, output_max=1)
    result = await attempt.run(Breakers())
    assert (result.outcome, result.counts.counted_here) == ("replica_gone", True)
