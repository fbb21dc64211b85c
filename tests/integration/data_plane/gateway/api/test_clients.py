"""Common client libraries, each unmodified and from its own environment, against a gateway."""

import json
import os
import subprocess

import pytest

from tests.conftest import CLIENTS
from tests.fixtures import processes
from tests.integration.data_plane.conftest import Tenant, assert_settled, slowly

SCRIPTS = processes.ROOT / "tests" / "clients"


def ran(program: str, script: str, tenant: Tenant, *names: str) -> dict:
    """The output of a client."""
    tenant.sdk()
    argv = [program, str(SCRIPTS / script), f"{tenant.stack.gateway.url}/v1", tenant.key, *names]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tenant.stack.folder), "CLIENTS": str(CLIENTS)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def answers(tenant: Tenant) -> list[str]:
    """The witness's answers to this tenant, in order."""
    journal = tenant.stack.witness.journal()
    return ["".join(journal[event.request_id].words) for event in tenant.events()]


def python_client(tenant: Tenant, name: str) -> dict:
    return ran(str(CLIENTS / "bin" / "python"), "python_clients.py", tenant, name)[name]


@pytest.mark.clients("bin/python")
def test_instructor_gets_its_models_by_tool_and_by_schema(tenant):
    output = python_client(tenant, "instructor")
    assert output == {mode: {"name": "amber", "age": 7} for mode in ("TOOLS", "JSON_SCHEMA")}
    assert len(tenant.events()) == 2


@pytest.mark.clients("bin/python")
def test_litellm_gets_whole_and_streamed_answers(tenant):
    output = python_client(tenant, "litellm")
    assert output["overflows"] == 4, "its fallbacks for long contexts run, through either API"
    assert [output["text"], output["streamed"], output["message"]] == answers(tenant)
    assert output["usage"] == tenant.events()[0].input_tokens


@pytest.mark.clients("bin/python")
def test_anthropic_chats_streams_calls_continues_and_lists_models(tenant):
    output = python_client(tenant, "anthropic")
    whole, streamed, call, begun = answers(tenant)
    assert (output["text"], output["streamed"], output["begun"]) == (whole, streamed, begun)
    assert output["usages"] == [event.input_tokens for event in tenant.events()[:2]]
    assert output["call"] == ["tool_use", "get_weather", json.loads(call)]
    assert output["models"] == [output["model"]] == ["tiny-chat"]
    assert output["counted"] == tenant.events()[0].input_tokens


@pytest.mark.clients("bin/python")
def test_langchain_calls_tools_and_continues(tenant):
    output = python_client(tenant, "langchain")
    whole, streamed, _, then = answers(tenant)
    assert (output["text"], output["streamed"], output["then"]) == (whole, streamed, then)
    assert output["calls"] == [{"name": "get_weather", "args": {"city": "amber"}}]
    assert output["result"] == "sunny in amber"
    assert output["overflow"] == "context_length_exceeded"
    assert output["usage"] == tenant.events()[0].input_tokens


@pytest.mark.clients("bin/python")
def test_langchain_completes_prompts_in_lists(tenant):
    output = python_client(tenant, "langchain_completions")
    one, streamed, _ = (answer.strip() for answer in answers(tenant))
    assert (output["one"].strip(), output["streamed"].strip()) == (one, streamed)
    assert output["many"][0] == output["one"], "the same prompt"
    assert len(set(output["many"])) == 3
    words = [word for answer in output["many"] for word in answer.split()]
    assert tenant.events()[-1].output_tokens == len(words), "a word is a token"


@pytest.mark.clients("bin/python")
def test_llama_index_chats_streams_and_completes(tenant):
    output = python_client(tenant, "llama_index")
    assert sorted(output.values()) == sorted(answers(tenant))


@pytest.mark.clients("node_modules/openai")
def test_openai_for_node_streams_calls_tools_follows_schemas_and_maps_errors(tenant):
    output = ran("node", "node_client.mjs", tenant, "answers")
    whole, streamed, call, shaped = answers(tenant)
    assert (output["text"], output["streamed"]) == (whole, streamed)
    assert output["usage"] == [tenant.events()[1].input_tokens, 3]
    assert output["call"] == {"name": "get_weather", "arguments": call}
    assert output["shaped"] == json.loads(shaped) == {"city": "amber"}
    assert output["models"] == ["tiny-chat"]
    assert output["refused"] == ["NotFoundError", 404, "model_not_found", True]


@pytest.mark.clients("node_modules/openai")
def test_openai_for_node_retries_by_itself_when_the_gateway_asks_for_it(stack):
    slowly(stack)
    tenant = stack.tenant(concurrent_requests=1)
    output = ran("node", "node_client.mjs", tenant, "retries")
    *refused, served = output["attempts"]
    assert refused
    assert refused == [[429, number, "1000"] for number in range(len(refused))]
    assert served == [200, len(refused), None]
    assert len(output["text"].split()) == 3


@pytest.mark.clients("node_modules/openai")
def test_openai_for_node_gets_the_error_that_ends_a_stream(stack, tenant):
    slowly(stack, cut_after=3)
    output = ran("node", "node_client.mjs", tenant, "breaks")
    event, journal = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 3
    assert output["streamed"] == "".join(journal.words)
    assert output["failed"] == ["APIError", "replica_failed", "server_error"]


@pytest.mark.clients("node_modules/ai")
def test_the_vercel_ai_sdk_chats_streams_walks_with_tools_and_follows_schemas(tenant):
    output = ran("node", "vercel_client.mjs", tenant)
    whole, streamed, _, then, shaped, completed = answers(tenant)
    assert (output["text"], output["streamed"], output["completed"]) == (whole, streamed, completed)
    assert output["usage"] == tenant.events()[1].input_tokens
    assert (output["calls"], output["then"]) == (["sunny in amber"], then)
    assert output["shaped"] == json.loads(shaped)
    assert output["refused"] == [404, False]


@pytest.mark.clients("bin/java")
def test_the_jdks_http_client_keeps_its_body_although_it_offers_http_2(tenant):
    output = ran(str(CLIENTS / "bin" / "java"), "JavaClient.java", tenant)
    whole, _ = answers(tenant)
    assert output["status"] == 200
    assert output["answer"]["choices"][0]["message"]["content"] == whole
    assert output["events"] > 5
