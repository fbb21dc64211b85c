"""Requests through a gateway to simulated providers: answered in the caller's format, settled once by the provider's
usage, and never charged for what a provider did wrong.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai
import pytest

from tests.conftest import wait_until
from tests.fixtures.processes import ENGINE_KEY
from tests.fixtures.providers.routes import COSTS, KEY, SECRET, outside_model, provider_route
from tests.fixtures.providers.simulator import (
    WORDS,
    AnthropicSimulator,
    Fault,
    InFrontOfServer,
    OpenAISimulator,
    simulated,
)
from tests.integration.data_plane.conftest import chat

SAID = "".join(f"word{number} " for number in range(WORDS))
RULES = "weighted", "overflow", "cascade"
SILENT = {"hang": Fault(hang=0), "late-hang": Fault(hang=4), "drip": Fault(drip_s=0.05)}
AT_ONCE = 36  # above ``breaker_failures``
BOTH = pytest.mark.parametrize("model", ["sim-openai", "sim-anthropic"])


@pytest.fixture(scope="module")
def simulators():
    with (
        simulated(OpenAISimulator()) as of_openai,
        simulated(AnthropicSimulator()) as of_anthropic,
        simulated(InFrontOfServer()) as of_vllm,
    ):
        yield {"sim-openai": of_openai, "sim-anthropic": of_anthropic, "sim-vllm": of_vllm}


@pytest.fixture(scope="module")
def gateway_settings(simulators):
    hosts = ",".join(each.host for each in simulators.values())
    return {
        "provider_secret": SECRET, "provider_inward_hosts": hosts, "provider_first_event_s": 3,
        "provider_between_events_s": 1, "provider_retry_wait_max_s": 2,
        "retry_burst": 1_000,  # outages of one test must not take the retries of others
    }  # fmt: skip


@pytest.fixture(scope="module")
def models(module_stack, simulators):
    """The routes of the simulators' models, published, and of some that cannot be reached or paid."""
    of_openai = simulators["sim-openai"].url
    simulators["sim-vllm"].target = module_stack.witness.url
    published = {
        "sim-openai": provider_route("prv_o", url=of_openai),
        "sim-anthropic": provider_route("prv_a", kind="anthropic", url=simulators["sim-anthropic"].url),
        "sim-spent": provider_route("prv_s", url=of_openai, spend_nanos_per_month=1000),
        "sim-inward": provider_route("prv_i", url="http://127.0.0.1:9/v1"),
        **{f"sim-outage-{rule}": provider_route(f"prv_{rule}", url=of_openai) for rule in RULES},
        **{f"sim-{name}": provider_route(f"prv_{name}", url=of_openai, requests_max=64) for name in (*SILENT, "mixed")},
        "sim-vllm": provider_route(
            "prv_v", kind="openai_compatible", url=simulators["sim-vllm"].url, model="tiny-chat", key=ENGINE_KEY
        ),
        "sim-off": provider_route("prv_f", url=of_openai, requests_max=0),
    }
    for name, provider in published.items():
        module_stack.publisher.base_model(outside_model(name, provider))
    client = module_stack.tenant().sdk()
    wait_until(lambda: published.keys() <= {each.id for each in client.models.list().data}, what="the models")
    for name in simulators:
        wait_until(lambda name=name: _answers(client, name), what=f"an answer of {name}")
    return published


def _answers(client: openai.OpenAI, model: str) -> bool:
    try:
        return bool(chat(client, model=model, max_tokens=1).id)
    except openai.APIStatusError:
        return False


@pytest.fixture
def tenant(models, stack, simulators):
    for each in simulators.values():
        each.faults.clear()
        each.requests.clear()
    return stack.tenant()


def settled(tenant):
    """The only event, once nothing is held."""
    event = tenant.event()
    wait_until(tenant.holds_nothing, what="holds to be released")
    assert tenant.stack.held_pages() == 0
    assert len(tenant.events()) == 1
    return event


def nothing_billed(tenant) -> None:
    wait_until(tenant.holds_nothing, what="holds to be released")
    assert tenant.events() == []


@BOTH
def test_a_whole_answer_is_settled_by_the_providers_usage(tenant, simulators, model):
    answer = chat(tenant.sdk(), "one two three", model=model, max_tokens=20)
    assert (answer.choices[0].message.content, answer.model) == (SAID, model)
    event = settled(tenant)
    cached = {"sim-openai": 1, "sim-anthropic": 2}[model]
    prompt = 3 if model == "sim-openai" else 5
    assert (event.input_tokens, event.cached_tokens, event.output_tokens) == (prompt, cached, WORDS)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, WORDS)
    assert (event.token_costs, event.counted_here, event.outcome) == (COSTS, False, "done")
    assert event.provider_nanos == (prompt - cached) * 100 + cached * 10 + WORDS * 400
    ((headers, body),) = simulators[model].requests
    shown = headers["authorization"] if model == "sim-openai" else headers["x-api-key"]
    assert shown.removeprefix("Bearer ") == KEY
    assert body["model"] == "mini"
    assert tenant.key not in str(headers)


@BOTH
def test_a_stream_is_settled_by_the_providers_usage(tenant, model):
    stream = chat(tenant.sdk(), model=model, max_tokens=20, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID
    assert {chunk.model for chunk in chunks} == {model}
    event = settled(tenant)
    assert chunks[-1].usage.completion_tokens == event.output_tokens == WORDS
    assert (event.counted_here, event.kv_page_ms, event.kv_measured) == (False, 0, True)


@BOTH
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("fault", [Fault(no_usage=True), Fault(usage={"output_tokens": -5, "completion_tokens": -5})])
def test_an_answer_without_a_usage_that_can_be_true_is_a_marked_estimate(tenant, simulators, model, streamed, fault):
    simulators[model].faults.append(fault)
    answer = chat(tenant.sdk(), model=model, max_tokens=20, stream=streamed)
    if streamed:
        assert list(answer)
    event = settled(tenant)
    assert event.counted_here
    assert event.input_tokens > 0
    assert WORDS <= event.output_tokens <= 20


@BOTH
def test_anthropics_api_reaches_both(tenant, stack, model):
    client = anthropic.Anthropic(base_url=stack.gateway.url, api_key=tenant.key, max_retries=0)
    stack.opened.callback(client.close)
    tenant.sdk()
    with client.messages.stream(model=model, max_tokens=20, messages=[{"role": "user", "content": "hi"}]) as stream:
        assert "".join(stream.text_stream) == SAID
    assert settled(tenant).output_tokens == WORDS


def test_a_busy_provider_is_asked_again_after_the_pause_that_it_asks_for(tenant, simulators):
    simulators["sim-openai"].faults.append(Fault(status=429, headers={"retry-after": "1"}))
    client, begun = tenant.sdk(), time.monotonic()
    assert chat(client, model="sim-openai", max_tokens=20).choices[0].message.content == SAID
    assert time.monotonic() - begun >= 1
    assert len(simulators["sim-openai"].requests) == 2
    assert settled(tenant).output_tokens == WORDS


REFUSED = {
    "busy for long": (Fault(status=429, headers={"retry-after": "60"}), 503, "provider_busy", 1),
    "no money": (Fault(status=429, body={"error": {"code": "insufficient_quota"}}), 503, "provider_spent", 1),
    "failing": (Fault(status=500), 502, "provider_failed", 2),
    "key refused": (Fault(status=401), 502, "provider_key_refused", 1),
    "redirect": (Fault(status=307, headers={"location": "http://127.0.0.1:1/"}), 502, "provider_failed", 1),
    "refused": (Fault(status=400), 400, "request_refused", 1),
    "200 with an error": (Fault(body={"error": {"code": "x", "message": "a secret"}}), 502, "provider_failed", 1),
    "endless header": (Fault(endless_header=True), 502, "provider_unreachable", 2),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("fault", "status", "code", "sent"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_provider_refuses_is_mapped_and_not_charged(tenant, simulators, streamed, fault, status, code, sent):
    simulators["sim-openai"].faults += [fault, fault]
    with pytest.raises(openai.APIStatusError) as refused:
        chat(tenant.sdk(), model="sim-openai", max_tokens=20, stream=streamed)
    assert (refused.value.status_code, refused.value.code) == (status, code)
    assert "secret" not in refused.value.response.text
    assert len(simulators["sim-openai"].requests) == sent
    nothing_billed(tenant)
    if code == "provider_busy":
        assert refused.value.response.headers["retry-after"] == "60"


def test_a_stream_that_is_cut_is_charged_for_what_arrived(tenant, simulators):
    simulators["sim-openai"].faults.append(Fault(cut=4))
    with pytest.raises(openai.APIError):
        list(chat(tenant.sdk(), model="sim-openai", max_tokens=20, stream=True))
    event = settled(tenant)
    assert (event.outcome, event.counted_here) == ("replica_gone", True)
    assert 3 <= event.output_tokens < WORDS


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("fault", SILENT.values(), ids=SILENT.keys())
def test_a_provider_that_completes_no_event_counts_as_silent(tenant, simulators, streamed, fault):
    simulators["sim-openai"].faults.append(fault)
    begun = time.monotonic()
    with pytest.raises(openai.APIError):
        list(chat(tenant.sdk(), model="sim-openai", max_tokens=20, stream=streamed))
    assert time.monotonic() - begun < 10
    wait_until(tenant.holds_nothing, what="holds to be released")
    assert all(event.counted_here and streamed for event in tenant.events())


def test_a_caller_that_hangs_up_pays_for_what_arrived(tenant, simulators):
    simulators["sim-openai"].faults.append(Fault(drip_s=0.001))
    stream = chat(tenant.sdk(), model="sim-openai", max_tokens=20, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    stream.close()
    event = settled(tenant)
    assert (event.outcome, event.counted_here) == ("client_gone", True)
    assert event.input_tokens > 0
    assert 1 <= event.output_tokens < WORDS


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("sim-spent", 503, "provider_ceiling_reached"),
        ("sim-inward", 502, "provider_unreachable"),
        ("sim-off", 503, "no_replica"),
    ],
)
def test_a_provider_that_may_not_be_asked_gets_nothing(tenant, simulators, model, status, code):
    with pytest.raises(openai.APIStatusError) as refused:
        chat(tenant.sdk(), model=model, max_tokens=20)
    assert (refused.value.status_code, refused.value.code) == (status, code)
    assert simulators["sim-openai"].requests == []
    nothing_billed(tenant)


@pytest.mark.parametrize("rule", RULES)
def test_an_outage_fails_no_request_that_has_another_member(tenant, stack, simulators, rule):
    """Before and after its circuit breaker opens, and what the provider did not answer costs nothing."""
    client, asked = tenant.sdk(), 24
    stack.witness.faults(logprob=-3.0)  # so that a cascade wants the better member
    simulators["sim-openai"].faults += [Fault(status=503)] * 10 * asked
    stack.publisher.group(tenant.id, "auto", rule, "tiny-chat", f"sim-outage-{rule}", threshold_percent=100)
    wait_until(lambda: "auto" in {each.id for each in client.models.list()}, what="the group")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: chat(client, model="auto", max_tokens=4), range(asked)))
    assert {answer.model for answer in answers} == {"tiny-chat"}
    assert simulators["sim-openai"].requests, "no request reached the provider, so none had to go elsewhere"
    wait_until(tenant.holds_nothing, what="holds to be released")
    wait_until(lambda: len(tenant.events()) >= asked, what="the events")
    assert {event.base_model for event in tenant.events()} == {"tiny-chat"}
    assert len(tenant.events()) == asked


@pytest.mark.parametrize("name", SILENT)
def test_a_whole_answer_that_stops_coming_is_given_by_another_member(tenant, stack, simulators, name):
    """And once the provider's circuit breaker is open, it is not asked."""
    client = tenant.sdk()
    simulators["sim-openai"].faults += [SILENT[name]] * 2 * AT_ONCE
    stack.publisher.group(tenant.id, "auto", "overflow", "tiny-chat", f"sim-{name}")
    wait_until(lambda: "auto" in {each.id for each in client.models.list()}, what="the group")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda _: chat(client, model="auto", max_tokens=4), range(AT_ONCE)))
    assert {answer.model for answer in answers} == {"tiny-chat"}
    asked = len(simulators["sim-openai"].requests)
    assert asked == AT_ONCE
    assert chat(client, model="auto", max_tokens=4).model == "tiny-chat"
    assert len(simulators["sim-openai"].requests) == asked
    wait_until(lambda: len(tenant.events()) == AT_ONCE + 1, what="the events")
    assert {event.base_model for event in tenant.events()} == {"tiny-chat"}


def test_an_outage_under_streams_costs_what_callers_got(tenant, stack, simulators):
    """Refusals and silence go to another member; a stream that is cut is charged, and costs, what arrived of it."""
    client, provider = tenant.sdk(), simulators["sim-openai"]
    provider.faults += [Fault(status=500, headers={"retry-after": "60"}), Fault(hang=0), Fault(cut=4), Fault()] * 3
    stack.publisher.group(tenant.id, "auto", "overflow", "tiny-chat", "sim-mixed")
    wait_until(lambda: "auto" in {each.id for each in client.models.list()}, what="the group")

    def ask(_):
        said, model = "", ""
        try:
            for chunk in chat(client, model="auto", max_tokens=4, stream=True):
                model = chunk.model
                said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        except openai.APIError:
            return model, said, "cut"
        return model, said, "whole"

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    cut = [answer for answer in answers if answer[2] == "cut"]
    assert [model for model, _, _ in cut] == ["sim-mixed"] * 3
    assert sorted(model for model, _, how in answers if how == "whole") == ["sim-mixed"] * 3 + ["tiny-chat"] * 6
    wait_until(lambda: len(tenant.events()) == 12, what="the events")
    costs = [event.provider_nanos for event in tenant.events() if event.base_model == "sim-mixed"]
    whole = 10 + 4 * 400  # the prompt is one word, which was cached
    parts = [event for event in tenant.events() if event.outcome == "replica_gone"]
    assert sorted(costs) == sorted([whole] * 3 + [each.input_tokens * 100 + each.output_tokens * 400 for each in parts])
    assert {said for _, said, _ in cut} == {"word0 word1 word2 "}
    assert all(each.counted_here and each.output_tokens >= 3 for each in parts)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_server_of_vllms_api_is_a_provider(tenant, stack, streamed):
    answer = chat(tenant.sdk(), model="sim-vllm", max_tokens=6, stream=streamed)
    said = (
        "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        if streamed
        else (answer.choices[0].message.content)
    )
    assert said
    event = settled(tenant)
    assert (event.output_tokens, event.counted_here, event.base_model) == (6, False, "sim-vllm")
    assert event.provider_nanos > 0


@pytest.mark.parametrize(
    ("options", "code", "param"),
    [
        ({"n": 2}, "invalid_value", "n"),
        ({"extra_body": {"top_k": 5}}, "unsupported_by_provider", "top_k"),
        ({"max_tokens": 5000}, "context_length_exceeded", "max_tokens"),
    ],
)
def test_what_the_provider_would_refuse_is_refused_before_it_is_asked(tenant, simulators, options, code, param):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(tenant.sdk(), model="sim-openai", **{"max_tokens": 20, **options})
    assert (refused.value.code, refused.value.param) == (code, param)
    assert simulators["sim-openai"].requests == []
    nothing_billed(tenant)
