"""One gateway, one witness and their Redis for each file; every test has its own tenant."""

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import openai
import pytest
import redis
import redis.asyncio

from core import redis_keys
from core.contracts.usage import UsageEvent
from data_plane.gateway.quota.reservation import Reservations
from tenora.stack.program import Program, free_port
from tests.conftest import TLS, wait_until
from tests.fixtures import processes
from tests.fixtures.faults.tcp_proxy import FaultsProxy, faults_proxy
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.quota.levels import connected, scripts

BRISK = {
    "replica_poll_ms": 50, "replica_stale_s": 4, "snapshot_block_ms": 200, "queue_wait_s": 1.0, "abort_s": 4,
    "lease_s": 2, "lease_renewal_s": 0.5, "first_byte_s": 3, "inter_token_s": 2, "settlement_retry_s": 0.1,
    "sweep_s": 0.2, "breaker_failures": 30,  # other tests make a replica fail repeatedly
}  # fmt: skip


@dataclass
class Stack:
    """The processes that a test uses."""

    client: redis.Redis
    publisher: Publisher
    witnesses: dict[str, processes.WitnessProcess]
    proxies: dict[str, FaultsProxy]
    gateway: processes.GatewayProcess
    folder: Path
    redis_url: str
    opened: contextlib.ExitStack

    @property
    def witness(self) -> processes.WitnessProcess:
        """The first of them."""
        return next(iter(self.witnesses.values()))

    def held_pages(self) -> int:
        """The pages that reservations hold on all witnesses."""
        keys = map(redis_keys.replica_held_pages, self.witnesses)
        return sum(int(self.client.hget(key, "total") or 0) for key in keys)

    def tenant(self, **limits: int) -> "Tenant":
        tenant_id = self.publisher.tenant(**limits)
        return Tenant(self, tenant_id, self.publisher.key(tenant_id))

    def events(self) -> list[UsageEvent]:
        entries = self.client.xrange(redis_keys.USAGE_STREAM)
        return [msgspec.json.decode(fields[b"event"], type=UsageEvent) for _, fields in entries]


@contextlib.contextmanager
def running_stack(
    folder: Path,
    redis_url: str,
    witnesses: dict[str, dict[str, object]],
    gateway_settings: dict[str, object],
    *,
    proxied: bool = False,
) -> Iterator[Stack]:
    """Witnesses by id with these options, and a gateway in front of them; ``proxied`` puts a proxy before each."""
    with contextlib.ExitStack() as up:
        client = up.enter_context(emptied(redis_url))
        publisher = Publisher(client, processes.PEPPER)
        publisher.base_model()
        proxies: dict[str, FaultsProxy] = {}
        started = {}
        for name, options in witnesses.items():
            port, public = free_port(), {}
            if proxied:
                proxies[name] = up.enter_context(faults_proxy(port))
                public["public_port"] = proxies[name].port
            started[name] = up.enter_context(processes.witness(folder, redis_url, name, port=port, **public, **options))
        gateway = up.enter_context(processes.gateway(folder, redis_url, **gateway_settings))
        yield Stack(client, publisher, started, proxies, gateway, folder, redis_url, contextlib.ExitStack())


@contextlib.contextmanager
def separate_stack(folder: Path, **settings: object) -> Iterator[tuple[Stack, subprocess.Popen[bytes], Program]]:
    """A stack whose Valkey can be stopped; also returns the server and a function that starts it again."""
    with (
        processes.valkey(folder) as valkey,
        running_stack(folder, valkey.url, {"rep_one": {}}, settings) as stack,
        stack.opened,
    ):
        yield stack, valkey.process, valkey.program


@dataclass
class Tenant:
    """A tenant with a key, and the SDK its developers use."""

    stack: Stack
    id: str
    key: str

    def sdk(self, url: str | None = None) -> openai.OpenAI:
        """Waits until the gateway knows the key."""
        client = openai.OpenAI(
            base_url=(url or self.stack.gateway.url) + "/v1", api_key=self.key, max_retries=0, timeout=20,
            http_client=openai.DefaultHttpxClient(verify=TLS),
        )  # fmt: skip
        self.stack.opened.callback(client.close)
        wait_until(lambda: _knows(client), what="the gateway to know a new key")
        return client

    def events(self) -> list[UsageEvent]:
        return [event for event in self.stack.events() if event.tenant_id == self.id]

    def event(self) -> UsageEvent:
        """The only event, once it has arrived."""
        (event,) = wait_until(self.events, what="a usage event")
        return event

    def quota(self) -> dict[str, int]:
        stored = self.stack.client.hgetall(redis_keys.tenant_quota(self.id))
        return {name.decode(): int(value) for name, value in stored.items() if name != b"month"}

    def holds_nothing(self) -> bool:
        quota = self.quota()
        held = [quota.get(name, 0) for name in ("concurrent", "kv_pages", "month_held")]
        leases = self.stack.client.zcard(redis_keys.tenant_leases(self.id))
        return held == [0, 0, 0] and leases == 0


def _knows(client: openai.OpenAI) -> bool:
    try:
        return bool(client.models.list().data)
    except openai.AuthenticationError:
        return False


def chat(client: openai.OpenAI, content: str = "hi", model: str = "tiny-chat", **options: object):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], **options)


def assert_settled(tenant, outcome: str, witness=None):
    """The one event agrees with the journal, which does not grow any further."""
    event = wait_until(tenant.events, what="a usage event")[0]
    assert event.outcome == outcome
    journal = (witness or tenant.stack.witness).journal()[event.request_id]
    assert event.aborted_prefill_tokens == journal.aborted_prefill_tokens
    assert event.input_tokens == journal.prompt_tokens + journal.aborted_prefill_tokens
    assert event.output_tokens == journal.output_tokens
    if event.kv_measured:
        assert event.kv_page_ms <= journal.kv_page_ms
    wait_until(tenant.holds_nothing, what="holds to be released")
    assert len(tenant.events()) == 1
    return event, journal


def slowly(stack, **faults: object) -> None:
    stack.witness.faults(**{"token_interval_s": 0.02, "output_tokens": 400, **faults})


def connections_of(process: "subprocess.Popen[bytes]") -> set[tuple[int, int]]:
    """The ports, its own and the other's, of a process's established connections, by the kernel's tables."""
    sockets = set()
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(link.readlink()))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = [row for row in rows if row[3] == "01" and f"socket:[{row[9]}]" in sockets]
    return {(int(row[1].rpartition(":")[2], 16), int(row[2].rpartition(":")[2], 16)) for row in established}


def emptied(redis_url: str) -> redis.Redis:
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    return client


@pytest.fixture
async def quotas(redis_settings) -> AsyncIterator[tuple[redis.asyncio.Redis, Reservations]]:
    """An emptied server, and the scripts on it."""
    async with connected(redis_settings.redis_url) as (server, line):
        yield server, scripts(line)


@pytest.fixture(scope="module")
def gateway_settings() -> dict[str, object]:
    """The settings of a file's gateway beyond BRISK."""
    return {}


@pytest.fixture(scope="module")
def witnesses() -> dict[str, dict[str, object]]:
    """The options of a file's witnesses by id."""
    return {"rep_one": {}}


@pytest.fixture(scope="module")
def proxied() -> bool:
    """Whether each witness has a proxy before it."""
    return False


@pytest.fixture(scope="module")
def module_stack(redis_server, tmp_path_factory, witnesses, gateway_settings, proxied) -> Iterator[Stack]:
    settings, folder = {**BRISK, **gateway_settings}, tmp_path_factory.mktemp("stack")
    with running_stack(folder, redis_server, witnesses, settings, proxied=proxied) as stack:
        yield stack


@pytest.fixture
def stack(module_stack) -> Iterator[Stack]:
    """The file's stack, with witnesses without faults."""
    for name, witness in module_stack.witnesses.items():
        witness.faults()
        if name in module_stack.proxies:
            module_stack.proxies[name].set()
    with module_stack.opened:
        yield module_stack
    assert module_stack.gateway.process.poll() is None
    assert "Traceback" not in module_stack.gateway.log.read_text()


@pytest.fixture
def tenant(stack) -> Tenant:
    """A tenant with ample limits."""
    return stack.tenant()
