"""Schemas are compiled beside the gateway, as engines do it: what takes too long there costs nobody else anything."""

import threading
import time

import httpx
import pytest

from tests.integration.data_plane.conftest import chat

HUGE = {"anyOf": [{"type": "string", "maxLength": 1_000_000 + number} for number in range(120)]}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]+$"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def gateway_settings():
    return {"schema_compile_s": 2, "schemas_per_minute": 12}


def schema_of(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def tool(parameters: dict) -> dict:
    return {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": parameters}}


def post(stack, tenant, **fields: object) -> httpx.Response:
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], **fields}
    headers = {"Authorization": f"Bearer {tenant.key}"}
    return httpx.post(f"{stack.gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def test_a_schema_that_compiles_reaches_the_engine_as_it_is(stack, tenant):
    client, person = tenant.sdk(), {**PERSON, "title": "Person"}
    compiled = stack.gateway.metric("tenora_gateway_schema_seconds_count")
    for _ in range(2):
        assert chat(client, response_format=schema_of(person)).choices
    sent = stack.witness.received()[-1]["body"]
    assert sent["response_format"] == schema_of(person)
    assert stack.gateway.metric("tenora_gateway_schema_seconds_count") == compiled + 1  # then it was known


def test_a_schema_that_takes_too_long_is_refused_and_holds_up_nobody(stack, tenant):
    client = tenant.sdk()
    chat(client, response_format=schema_of(PERSON))  # the compiler has started
    refusals: list[httpx.Response] = []
    bomb = threading.Thread(target=lambda: refusals.append(post(stack, tenant, response_format=schema_of(HUGE))))
    bomb.start()
    slowest = 0.0
    while bomb.is_alive():
        began = time.monotonic()
        assert httpx.get(f"{stack.gateway.url}/healthz").status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    (refusal,) = refusals
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "schema_too_complex")
    assert slowest < 1  # it took two seconds, elsewhere
    assert post(stack, tenant, response_format=schema_of(HUGE)).json()["error"]["code"] == "schema_too_complex"
    assert stack.gateway.metric("tenora_gateway_schema_compilers_lost_total") == 1  # not tried again
    assert chat(client, response_format=schema_of({**PERSON, "title": "another"})).choices  # another compiler


def test_the_schemas_of_tools_are_compiled_as_well(stack, tenant):
    tenant.sdk()
    bad = {"type": "object", "properties": {"city": {"type": "string", "pattern": "["}}}
    error = post(stack, tenant, tools=[tool(PERSON), tool(bad)]).json()["error"]
    assert (error["code"], error["param"]) == ("schema_invalid", "tools[1].function.parameters")
    assert "/project" not in error["message"]


def test_new_schemas_are_rationed_by_tenant_and_known_ones_are_not(stack):
    greedy, other = stack.tenant(), stack.tenant()
    greedy.sdk()
    client = other.sdk()
    told = [
        post(stack, greedy, max_tokens=1, response_format=schema_of({"type": "string", "maxLength": 1 + number}))
        for number in range(14)
    ]
    limited = told[-1]
    assert [response.status_code for response in told[:12]] == [200] * 12
    assert (limited.status_code, limited.json()["error"]["code"]) == (429, "schema_rate_limited")
    assert int(limited.headers["retry-after"]) <= 6
    known = schema_of({"type": "string", "maxLength": 1})
    assert post(stack, greedy, max_tokens=1, response_format=known).status_code == 200
    assert chat(client, response_format=schema_of({"type": "string", "maxLength": 99})).choices
