"""The middleware passes only known routes, and only with the engine's key."""

import pytest

from data_plane.engine.middleware.middleware import ABORT_PATH
from tests.fixtures.engine.middleware_harness import KEY, running_middleware

NAME = f"ad_{'0' * 26}@{'a' * 64}"


@pytest.fixture
async def harness(tmp_path):
    async with running_middleware(tmp_path) as harness:
        yield harness


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_generation_needs_the_key(harness, path):
    assert (await harness.ask("POST", path, {"model": ""}, key=None)).status == 401
    assert (await harness.ask("POST", path, {"model": ""}, key="wrong")).status == 401
    assert harness.generation.started == []
    assert (await harness.ask("POST", path, {"model": ""})).status == 200
    assert harness.generation.started == [path]


async def test_the_previous_key_is_accepted_while_it_is_set_and_vllm_sees_the_current_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TENORA_ENGINE_KEY_PREVIOUS", "the-key-before-this-one")
    async with running_middleware(tmp_path) as harness:
        for key, status in ((KEY, 200), ("the-key-before-this-one", 200), ("another-key-altogether", 401)):
            assert (await harness.ask("POST", "/v1/completions", {"model": ""}, key=key)).status == status
    assert harness.generation.authorizations == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/tenora/v1/residency"),
        ("POST", "/tenora/v1/prefetch"),
        ("POST", "/tenora/v1/unload"),
        ("PUT", "/tenora/v1/revoked"),
        ("PUT", "/tenora/v1/pins"),
    ],
)
async def test_the_adapters_routes_need_the_key(harness, method, path):
    assert (await harness.ask(method, path, key=None)).status == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
        ("POST", "/adapters"),
        ("POST", "/invocations"),
        ("POST", "/tokenize"),
        ("POST", "/inference/v1/generate"),
        ("POST", "/pause"),
        ("GET", "/docs"),
        ("GET", "/v1/chat/completions"),
        ("POST", "//v1/chat/completions"),
        ("POST", "/v1/chat/completions/"),
        ("POST", "/tenora/v1/residency"),
        ("GET", "/tenora/v1/unload"),
    ],
)
async def test_every_other_route_is_closed_even_with_the_key(harness, method, path):
    assert (await harness.ask(method, path)).status == 404
    assert harness.generation.started == []


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_health_and_metrics_are_open(harness, path):
    assert (await harness.ask("GET", path, key=None)).status == 200


async def test_abort_reaches_the_engine(harness):
    assert (await harness.ask("POST", ABORT_PATH, {"request_ids": ["chatcmpl-req_1"]})).status == 200
    assert harness.client.aborted == ["chatcmpl-req_1"]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"request_ids": "all"}', b'{"request_ids": []}', b'{"request_ids": [1]}', b"x" * 20_000],
)
async def test_a_malformed_abort_is_refused(harness, body):
    assert (await harness.ask("POST", ABORT_PATH, body)).status == 400
    assert harness.client.aborted == []


async def test_websockets_are_closed(harness):
    sent = []

    async def send(message):
        sent.append(message)

    await harness.middleware({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)
    assert sent[0]["status"] == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/tenora/v1/prefetch", b""),
        ("POST", "/tenora/v1/prefetch", {"name": "bot"}),
        ("POST", "/tenora/v1/prefetch", {"name": NAME, "tier": "slot"}),
        ("POST", "/tenora/v1/unload", {"name": "../../etc"}),
        ("POST", "/tenora/v1/unload", {"name": NAME, "drain_s": -1}),
        ("POST", "/tenora/v1/unload", {"name": NAME, "drain_s": 1e9}),
        ("POST", "/tenora/v1/unload", b'{"name": "' + NAME.encode() + b'", "drain_s": NaN}'),
        ("PUT", "/tenora/v1/revoked", {"adapters": "all"}),
        ("PUT", "/tenora/v1/revoked", {"adapters": [NAME]}),
        ("PUT", "/tenora/v1/pins", {"names": [NAME], "more": 1}),
    ],
)
async def test_a_malformed_body_is_400_and_changes_nothing(harness, method, path, body):
    answer = await harness.ask(method, path, body)
    assert (answer.status, answer.code) == (400, "invalid_value")
    assert harness.adapters.revoked.adapters == frozenset()


async def test_a_name_in_the_header_of_another_shape_is_refused(harness):
    answer = await harness.ask("POST", "/v1/completions", {"model": "x"}, x_tenora_adapter="../../etc/passwd")
    assert answer.status == 400
    assert harness.generation.started == []


async def test_a_body_without_a_header_is_bounded(tmp_path, harness):
    body = b"x" * (harness.settings.engine_body_bytes_max + 1)
    assert (await harness.ask("POST", "/v1/completions", body)).status == 413


async def test_more_pins_than_half_of_host_memory_are_refused(harness):
    names = [f"ad_{'0' * 26}@{number:064x}" for number in range(harness.settings.memory_adapters // 2 + 1)]
    assert (await harness.ask("PUT", "/tenora/v1/pins", {"names": names})).status == 422
    assert (await harness.ask("PUT", "/tenora/v1/pins", {"names": names[1:]})).json == {"missing": names[1:]}
