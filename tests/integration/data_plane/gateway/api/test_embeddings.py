"""Embeddings through a real gateway: the official SDK, exact metering, and calls that a model cannot answer."""

import json

import openai
import pytest

from core import redis_keys
from core.contracts.engine_usage import EngineUsageReport
from tests.conftest import wait_until
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
from tests.fixtures.witness.answer import CACHED_TOKENS
from tests.fixtures.witness.embedding import embedding_of
from tests.integration.data_plane.conftest import assert_settled, chat

MODEL = "tiny-embed"


@pytest.fixture(scope="module")
def witnesses():
    return {"rep_one": {}, "rep_embed": {"base_model": MODEL}}


@pytest.fixture
def sdk(stack, tenant) -> openai.OpenAI:
    stack.publisher.base_model(tiny_route(MODEL, task="embed"))
    client = tenant.sdk()
    wait_until(lambda: MODEL in {each.id for each in client.models.list()}, what="the model to be listed")
    return client


@pytest.mark.parametrize("encoding", ["base64", "float"])
def test_the_sdk_gets_the_engines_embeddings_in_the_order_of_the_texts(sdk, encoding):
    texts = ["the sea", "the sea is blue"]
    found = sdk.embeddings.create(model=MODEL, input=texts, encoding_format=encoding)
    assert [each.embedding for each in found.data] == [embedding_of(MODEL, json.dumps(text)) for text in texts]
    assert (found.object, found.model) == ("list", MODEL)


def test_prompts_are_metered_as_the_engine_counts_them_and_nothing_is_generated(stack, tenant, sdk):
    found = sdk.embeddings.create(model=MODEL, input=["the sea", "the sea is blue"], user="a session")
    event, journal = assert_settled(tenant, "done", stack.witnesses["rep_embed"])
    assert found.usage.prompt_tokens == found.usage.total_tokens == journal.prompt_tokens == event.input_tokens
    assert (event.output_tokens, event.cached_tokens, event.kv_measured) == (0, 2 * CACHED_TOKENS, True)
    assert event.base_model == MODEL


def test_what_engines_count_for_reconciliation_equals_the_metered_usage(stack, tenant, sdk):
    sdk.embeddings.create(model=MODEL, input="the sea")
    event = tenant.event()

    def reported() -> list:
        entries = stack.client.xrange(redis_keys.ENGINE_USAGE)
        reports = [json.loads(fields[b"report"]) for _, fields in entries]
        assert all(set(report) <= set(EngineUsageReport.__struct_fields__) for report in reports)
        return [hour for report in reports for hour in report["hours"] if hour["tenant_id"] == tenant.id]

    hour = wait_until(reported, what="the engine's report")[-1]
    assert (hour["prompt_tokens"], hour["cached_tokens"]) == (event.input_tokens, event.cached_tokens)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": []}, "input"), ({"input": [[1, 2]]}, "input[0]"), ({"input": ["a"] * 257}, "input"),
        ({"input": "a", "dimensions": 3}, "dimensions"), ({"input": "a", "encoding_format": "x"}, "encoding_format"),
        ({"input": "a", "stream": True}, "stream"), ({"input": "a " * 5000}, "input"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_refused_with_its_field_and_reaches_no_engine(stack, tenant, sdk, body, param):
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.post("/embeddings", body={"model": MODEL, **body}, cast_to=object)
    assert refused.value.param == param
    assert tenant.events() == []


def test_a_model_answers_only_calls_of_its_task(tenant, sdk):
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.embeddings.create(model="tiny-chat", input="the sea")
    assert (refused.value.code, refused.value.param) == ("model_makes_no_embeddings", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        chat(sdk, model=MODEL)
    assert (refused.value.code, refused.value.param) == ("model_makes_embeddings_only", "model")
    described = {each.id: each.capabilities for each in sdk.models.list()}
    assert described == {
        "tiny-chat": {"tools": True, "embeddings": False}, MODEL: {"tools": False, "embeddings": True}
    }  # fmt: skip
