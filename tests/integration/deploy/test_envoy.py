"""Two gateways behind a real Envoy with the configuration of deploy/envoy. One is drained under streams."""

import asyncio
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tenora.stack.program import Program, answers, free_port
from tests.conftest import TLS, running, wait_until
from tests.fixtures import processes
from tests.integration.data_plane.conftest import BRISK, Tenant, running_stack, slowly

pytestmark = pytest.mark.deploy
ROOT = Path(__file__).parents[3]
STREAMS, CALLERS, NOTICE_S = 24, 4, 4
SETTINGS = {**BRISK, "gateway_drain_notice_s": NOTICE_S}


@dataclass
class Envoy:
    url: str
    admin_url: str

    def read(self, path: str) -> str:
        with urllib.request.urlopen(self.admin_url + path, timeout=5) as answer:
            return answer.read().decode()

    def healthy(self) -> int:
        return int(self.read("/stats?filter=cluster.gateways.membership_healthy$").rpartition(" ")[2])

    def streams(self, gateway: processes.GatewayProcess) -> int:
        """The requests that run at this gateway."""
        start = f"gateways::{gateway.url.removeprefix('http://')}::rq_active::"
        (found,) = (line for line in self.read("/clusters").splitlines() if line.startswith(start))
        return int(found.removeprefix(start))


@pytest.fixture
def tenant(redis_server, tmp_path) -> Iterator[Tenant]:
    with running_stack(tmp_path, redis_server, {"rep_one": {}}, SETTINGS) as stack, stack.opened:
        yield stack.tenant()


@pytest.fixture
def second(tenant) -> Iterator[processes.GatewayProcess]:
    with processes.gateway(tenant.stack.folder, tenant.stack.redis_url, "second", **SETTINGS) as gateway:
        yield gateway


@pytest.fixture
def envoy(tenant, second, tmp_path) -> Iterator[Envoy]:
    port, admin_port = free_port(), free_port()
    text = (ROOT / "deploy" / "envoy" / "envoy.yaml").read_text()
    for written, here in {
        "address: gateway-1.internal, port_value: 8080": _address(tenant.stack.gateway.url),
        "address: gateway-2.internal, port_value: 8080": _address(second.url),
        "address: 0.0.0.0, port_value: 8000": f"address: 127.0.0.1, port_value: {port}",
        "address: 127.0.0.1, port_value: 9901": f"address: 127.0.0.1, port_value: {admin_port}",
    }.items():
        assert text.count(written) == 1
        text = text.replace(written, here)
    (tmp_path / "envoy.yaml").write_text(text)
    found = Envoy(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
    arguments = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
    program = Program(
        name="envoy",
        argv=(str(ROOT / ".deploy" / "bin" / "envoy"), "-c", str(tmp_path / "envoy.yaml"), *arguments),
        ready=lambda: answers(f"{found.admin_url}/ready") and found.healthy() == 2,
        log=tmp_path / "envoy.log",
        env={},
    )
    with running(program):
        yield found


def _address(url: str) -> str:
    host, _, port = url.removeprefix("http://").partition(":")
    return f"address: {host}, port_value: {port}"


async def _stream(client: openai.AsyncOpenAI, begun: asyncio.Event) -> str | None:
    """Why the stream ended."""
    reason = None
    async for chunk in await _ask(client, stream=True):
        begun.set()
        reason = chunk.choices[0].finish_reason if chunk.choices else reason
    return reason


def _ask(client: openai.AsyncOpenAI, **options: object):
    messages = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(model="tiny-chat", messages=messages, **options)


async def test_a_gateway_leaves_under_streams_and_no_caller_notices(tenant, second, envoy):
    leaving = tenant.stack.gateway
    slowly(tenant.stack, output_tokens=400)  # eight seconds: longer than the notice
    for url in (leaving.url, second.url):
        await asyncio.to_thread(tenant.sdk, url)  # both know the key
    http = openai.DefaultAsyncHttpxClient(verify=TLS)
    async with openai.AsyncOpenAI(
        base_url=envoy.url + "/v1", api_key=tenant.key, max_retries=0, timeout=60, http_client=http
    ) as client:
        begun = [asyncio.Event() for _ in range(STREAMS)]
        streams = [asyncio.create_task(_stream(client, each)) for each in begun]
        await asyncio.gather(*(each.wait() for each in begun))
        assert min(envoy.streams(leaving), envoy.streams(second)) > 0
        gone, served = asyncio.Event(), []

        async def call() -> None:
            while not gone.is_set():
                answer = await _ask(client, max_tokens=1)
                served.append(answer.choices[0].finish_reason)

        callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
        leaving.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: envoy.healthy() == 1, what="Envoy to take the gateway out")
        assert answers(f"{leaving.url}/livez")  # it still accepts
        assert await asyncio.to_thread(leaving.process.wait, 30) == 0
        gone.set()
        await asyncio.gather(*callers)
        assert await asyncio.gather(*streams) == ["stop"] * STREAMS
    assert len(served) > 100
    assert set(served) == {"length"}
    wait_until(tenant.holds_nothing, what="every request to be settled")
    assert [event.outcome for event in tenant.events()] == ["done"] * (STREAMS + len(served))
