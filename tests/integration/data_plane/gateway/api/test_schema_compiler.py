"""A separate process compiles schemas as engines do, so a slow schema delays no other tenant's request."""

import asyncio
import json
import threading
import time
from pathlib import Path

import httpx
import msgspec
import prometheus_client
import psutil
import pytest
import redis.asyncio

from core.errors import InvalidRequest, TooManyRequests, Unavailable
from data_plane.gateway.api.openai_request import BodyLimits, parse_call
from data_plane.gateway.api.schema_compiler import SchemaCompiler
from tests.fixtures.gateway.requests import settings_with
from tests.fixtures.gateway.tiny_tokenizer import tiny_route
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
    return {"schema_compile_s": 1, "schemas_per_minute": 12}


def schema_of(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def tool(parameters: dict) -> dict:
    return {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": parameters}}


def post(stack, tenant, **fields: object) -> httpx.Response:
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], **fields}
    headers = {"Authorization": f"Bearer {tenant.key}"}
    return httpx.post(f"{stack.gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def test_a_schema_that_compiles_reaches_the_engine_unchanged(stack, tenant):
    client, person = tenant.sdk(), {**PERSON, "title": "Person"}
    compiled = stack.gateway.metric("tenora_gateway_schema_seconds_count")
    for _ in range(2):
        assert chat(client, response_format=schema_of(person)).choices
    sent = stack.witness.received()[-1]["body"]
    assert sent["response_format"]["format"]["json_schema"] == person
    assert stack.gateway.metric("tenora_gateway_schema_seconds_count") == compiled + 1  # the schema was cached by then


def test_a_schema_that_compiles_too_slowly_is_refused_and_delays_no_other_request(stack, tenant):
    client = tenant.sdk()
    chat(client, response_format=schema_of({**PERSON, "title": "first"}))  # the compiler runs
    lost = stack.gateway.metric("tenora_gateway_schema_compilers_lost_total")
    refusals: list[httpx.Response] = []
    bomb = threading.Thread(target=lambda: refusals.append(post(stack, tenant, response_format=schema_of(HUGE))))
    bomb.start()
    answered = 0
    with httpx.Client() as others:  # one client: a new one each time costs the test more than the answer
        while bomb.is_alive():
            assert others.get(f"{stack.gateway.url}/livez").status_code == 200
            answered += bomb.is_alive()
    (refusal,) = refusals
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "schema_too_complex")
    assert answered >= 5  # the gateway answered while the compiler's process used a second of CPU time
    assert post(stack, tenant, response_format=schema_of(HUGE)).json()["error"]["code"] == "schema_too_complex"
    assert stack.gateway.metric("tenora_gateway_schema_compilers_lost_total") == lost + 1  # not compiled again
    assert chat(client, response_format=schema_of({**PERSON, "title": "another"})).choices  # a new compiler process


def test_the_schemas_of_tools_are_compiled_as_well(stack, tenant):
    tenant.sdk()
    bad = {"type": "object", "properties": {"city": {"type": "string", "pattern": "["}}}
    error = post(stack, tenant, tools=[tool(PERSON), tool(bad)]).json()["error"]
    assert (error["code"], error["param"]) == ("schema_invalid", "tools[1].function.parameters")
    assert "/project" not in error["message"]


def compilers(stack) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(stack.gateway.process.pid).children(recursive=True)
        if "data_plane.gateway.api.schema_compiler_process" in process.cmdline()
    ]


def test_the_compiler_has_no_privileges_no_secrets_and_no_network(stack, tenant):
    chat(tenant.sdk(), response_format=schema_of({**PERSON, "title": "confined"}))
    (child,) = compilers(stack)
    status = dict(
        line.split(":\t") for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"]) == ("1", "2", "1")
    assert not [name for name in child.environ() if name.startswith("TENORA_")]
    if not stack.gateway.metric("tenora_gateway_schema_compilers_unprotected_total", '{missing="network"}'):
        assert Path(f"/proc/{child.pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def test_a_killed_compiler_is_replaced_and_the_schema_is_not_refused(stack, tenant):
    client = tenant.sdk()
    for number in range(3):
        assert chat(client, response_format=schema_of({**PERSON, "title": f"innocent {number}"})).choices
        for child in compilers(stack):
            child.kill()
        time.sleep(0.1 * number)  # soon after the kill, and after the gateway has noticed it


async def test_a_gateway_without_a_compiler_or_a_tokenizer_serves_nothing(stack):
    absent = msgspec.structs.replace(tiny_route(), tokenizer_sha256="absent")
    async with redis.asyncio.Redis.from_url(stack.redis_url) as client:
        for route, start_s in ((tiny_route(), 0.01), (absent, 30)):
            grammars = compiler(client, stack.redis_url, schema_start_s=start_s)
            with pytest.raises(Unavailable, match="cannot be compiled now"):
                await grammars.check("tn_a", route, asks(PERSON))
            await grammars.close()


def compiler(client: redis.asyncio.Redis, url: str, **changes: float) -> SchemaCompiler:
    return SchemaCompiler(client, settings_with(redis_url=url, **changes))


def asks(schema: dict):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "response_format": schema_of(schema)}
    return parse_call("chat", json.dumps(body).encode(), BodyLimits(24, 256))


async def test_a_burst_of_slow_schemas_delays_another_tenant_by_one_of_them(stack):
    """Other tenants' schemas go between those of one tenant, and a schema's worst cost is reserved before it is
    compiled.
    """
    async with redis.asyncio.Redis.from_url(stack.redis_url) as client:
        grammars = compiler(client, stack.redis_url, schema_compile_s=0.3)
        await grammars.check("tn_a", tiny_route(), asks(PERSON))  # the compiler runs
        bombs = [
            asyncio.create_task(grammars.check("tn_a", tiny_route(), asks({**HUGE, "title": f"bomb {number}"})))
            for number in range(16)
        ]
        await asyncio.sleep(0)
        await grammars.check("tn_b", tiny_route(), asks({"type": "string", "maxLength": 5}))
        ended = [task for task in bombs if task.done()]
        refusals = await asyncio.gather(*bombs, return_exceptions=True)
        await grammars.close()
    tried = [refusal for refusal in refusals if isinstance(refusal, InvalidRequest)]
    assert len(tried) <= 4
    assert sum(isinstance(refusal, TooManyRequests) for refusal in refusals) == 16 - len(tried)
    assert sum(isinstance(task.exception(), InvalidRequest) for task in ended) <= 1


async def test_concurrent_requests_with_one_schema_share_one_compilation(stack):
    async with redis.asyncio.Redis.from_url(stack.redis_url) as client:
        grammars = compiler(client, stack.redis_url, schemas_per_minute=1)
        same = [grammars.check(tenant, tiny_route(), asks(PERSON)) for tenant in ["tn_a"] * 3 + ["tn_b"] * 3]
        await asyncio.gather(*same)
        await grammars.close()


async def test_a_schema_that_an_engine_may_have_forgotten_is_compiled_and_rationed_again(stack):
    """An engine keeps compiled schemas within a size, so a number of remembered results is no bound on its work."""

    def compiled() -> float:
        return prometheus_client.REGISTRY.get_sample_value("tenora_gateway_schema_seconds_count") or 0

    async with redis.asyncio.Redis.from_url(stack.redis_url) as client:
        # Every schema is larger than this, and the second one replaces the first.
        grammars = compiler(client, stack.redis_url, schema_cache_max_bytes=1024)
        before = compiled()
        for _ in range(3):
            for number in range(2):
                await grammars.check("tn_a", tiny_route(), asks({**PERSON, "title": f"turn {number}"}))
        await grammars.close()
    assert compiled() == before + 6, "the results would be remembered although no engine keeps the grammars"


def test_new_schemas_are_rate_limited_per_tenant_and_cached_ones_are_not(stack):
    greedy, other = stack.tenant(), stack.tenant()
    greedy.sdk()
    client = other.sdk()
    responses = [
        post(stack, greedy, max_tokens=1, response_format=schema_of({"type": "string", "maxLength": 1 + number}))
        for number in range(14)
    ]
    limited = responses[-1]
    assert [response.status_code for response in responses[:12]] == [200] * 12
    assert (limited.status_code, limited.json()["error"]["code"]) == (429, "schema_rate_limited")
    assert int(limited.headers["retry-after"]) <= 6
    known = schema_of({"type": "string", "maxLength": 1})
    assert post(stack, greedy, max_tokens=1, response_format=known).status_code == 200
    assert chat(client, response_format=schema_of({"type": "string", "maxLength": 99})).choices
