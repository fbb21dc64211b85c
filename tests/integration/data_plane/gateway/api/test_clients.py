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
    said = python_client(tenant, "instructor")
    assert said == {mode: {"name": "amber", "age": 7} for mode in ("TOOLS", "JSON_SCHEMA")}
    assert len(tenant.events()) == 2


@pytest.mark.clients("bin/python")
def test_litellm_speaks_both_shapes(tenant):
    said = python_client(tenant, "litellm")
    assert [said["text"], said["streamed"], said["message"]] == answers(tenant)
    assert said["usage"] == tenant.events()[0].input_tokens


@pytest.mark.clients("bin/python")
def test_langchain_calls_tools_and_continues(tenant):
    said = python_client(tenant, "langchain")
    whole, streamed, _, then = answers(tenant)
    assert (said["text"], said["streamed"], said["then"]) == (whole, streamed, then)
    assert said["calls"] == [{"name": "get_weather", "args": {"city": "amber"}}]
    assert said["result"] == "sunny in amber"
    assert said["usage"] == tenant.events()[0].input_tokens


@pytest.mark.clients("bin/python")
def test_llama_index_chats_streams_and_completes(tenant):
    said = python_client(tenant, "llama_index")
    assert sorted(said.values()) == sorted(answers(tenant))


@pytest.mark.clients("node_modules/openai")
def test_openai_for_node_streams_calls_tools_keeps_to_schemas_and_knows_its_errors(tenant):
    said = ran("node", "node_client.mjs", tenant, "answers")
    whole, streamed, call, shaped = answers(tenant)
    assert (said["text"], said["streamed"]) == (whole, streamed)
    assert said["usage"] == [tenant.events()[1].input_tokens, 3]
    assert said["call"] == {"name": "get_weather", "arguments": call}
    assert said["shaped"] == json.loads(shaped) == {"city": "amber"}
    assert said["models"] == ["tiny-chat"]
    assert said["refused"] == ["NotFoundError", 404, "model_not_found", True]


@pytest.mark.clients("node_modules/openai")
def test_openai_for_node_retries_by_itself_when_the_gateway_asks_for_it(stack):
    slowly(stack)
    tenant = stack.tenant(concurrent_requests=1)
    said = ran("node", "node_client.mjs", tenant, "retries")
    *refused, served = said["attempts"]
    assert refused
    assert refused == [[429, number, "1000"] for number in range(len(refused))]
    assert served == [200, len(refused), None]
    assert len(said["text"].split()) == 3


@pytest.mark.clients("node_modules/openai")
def test_openai_for_node_gets_the_error_that_ends_a_stream(stack, tenant):
    slowly(stack, cut_after=3)
    said = ran("node", "node_client.mjs", tenant, "breaks")
    event, journal = assert_settled(tenant, "replica_gone")
    assert event.output_tokens == 3
    assert said["streamed"] == "".join(journal.words)
    assert said["failed"] == ["APIError", "replica_failed", "server_error"]
