"""A completion with a list of prompts: each has its own answer, and each is counted, held and billed as a prompt."""

import itertools

import openai
import pytest

from core.kv_pages import pages_for
from tests.conftest import wait_until
from tests.fixtures.witness.answer import CACHED_TOKENS
from tests.integration.data_plane.conftest import assert_settled, slowly

PROMPTS = ["My card was", "hi", "Where is my new card, which you sent to me a week ago? " * 4]


def complete(client: openai.OpenAI, prompt: object, **options: object):
    return client.completions.create(model="tiny-chat", prompt=prompt, **options)


def texts(answer, *, stream: bool) -> list[str]:
    if not stream:
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]
    found: dict[int, str] = {}
    for choice in itertools.chain.from_iterable(chunk.choices for chunk in answer):
        found[choice.index] = found.get(choice.index, "") + choice.text
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize(("stream", "n"), [(False, 2), (True, 1)])
def test_each_prompt_has_n_choices_and_is_billed_with_each(tenant, stream, n):
    shown = {"stream_options": {"include_usage": True}} if stream else {}
    answer = complete(tenant.sdk(), PROMPTS, n=n, stream=stream, **shown)
    answer = list(answer) if stream else answer
    event, journal = assert_settled(tenant, "done")
    assert (event.kv_page_ms, event.kv_measured) == (journal.kv_page_ms, True)
    assert event.cached_tokens == CACHED_TOKENS * len(PROMPTS) * n
    usage = answer[-1].usage if stream else answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (event.input_tokens, event.output_tokens)
    assert usage.prompt_tokens_details.cached_tokens == event.cached_tokens
    alone = [complete(tenant.sdk(), prompt) for prompt in PROMPTS]
    assert texts(answer, stream=stream) == [one.choices[0].text for one in alone for _ in range(n)]
    assert event.input_tokens == n * sum(one.usage.prompt_tokens for one in alone)
    assert event.output_tokens == n * sum(one.usage.completion_tokens for one in alone)


def test_a_list_of_one_prompt_is_that_prompt(tenant, stack):
    assert complete(tenant.sdk(), ["hi"]).choices == complete(tenant.sdk(), "hi").choices
    listed, plain = [one["body"] for one in stack.witness.received()[-2:]]
    assert listed == plain


def test_a_running_list_holds_what_each_of_its_prompts_may_take(tenant, stack):
    slowly(stack)
    prompts = [tenant.sdk().completions.create(model="tiny-chat", prompt=each, max_tokens=1) for each in PROMPTS]
    lengths = [one.usage.prompt_tokens for one in prompts]
    stream = complete(tenant.sdk(), PROMPTS, max_tokens=400, stream=True)
    next(iter(stream))
    held = tenant.quota()
    assert held["month_held"] == sum(lengths) + 400 * len(PROMPTS)
    assert held["kv_pages"] == sum(pages_for(length + 400) for length in lengths)
    stream.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_disconnects_pays_for_what_was_produced_after_each_prompt(tenant, stack, stream):
    slowly(stack)
    client = tenant.sdk().with_options(timeout=1)
    if stream:
        chunks = complete(client, PROMPTS, max_tokens=400, stream=True)
        list(itertools.islice(chunks, 10))
        chunks.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            complete(client, PROMPTS, max_tokens=400)
    event, _ = assert_settled(tenant, "client_gone")
    assert 3 <= event.output_tokens < 600
    assert event.cached_tokens == CACHED_TOKENS * len(PROMPTS)


@pytest.mark.parametrize(("prefilled", "stream"), [(5, False), (None, True)], ids=["a part", "no report"])
def test_abandoned_prompts_are_charged_as_far_as_each_was_computed(tenant, stack, stream, prefilled):
    lengths = [complete(tenant.sdk(), each, max_tokens=1).usage.prompt_tokens for each in PROMPTS]
    slowly(stack, hang=True, prefilled=prefilled)
    with pytest.raises(openai.APITimeoutError):
        list(complete(tenant.sdk().with_options(timeout=1), PROMPTS, stream=stream))
    done = len(PROMPTS)
    events = wait_until(lambda: len(tenant.events()) > done and tenant.events(), what="a usage event")
    assert events[-1].aborted_prefill_tokens == sum(min(length, prefilled or length) for length in lengths)


def test_the_longest_prompt_must_fit_the_context(tenant, stack):
    before = len(stack.witness.received())
    with pytest.raises(openai.BadRequestError) as refused:
        complete(tenant.sdk(), ["hi", "capital " * 20_000])
    assert refused.value.code == "context_length_exceeded"
    assert len(stack.witness.received()) == before
