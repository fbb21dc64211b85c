"""Starts the programs that the gateway's benchmarks compare: the upstream, Tenora's gateway with a real Valkey, the
bare relay, and the peers. ``benchmarks.gateway.__main__`` decides how each of them is measured.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import redis

from benchmarks.gateway import peers
from benchmarks.gateway.exchange import MODEL, request_body
from core import redis_keys
from core.contracts.grants import KeyLimits, Prices
from core.contracts.replicas import ReplicaStatus
from data_plane.gateway.api.openai_request import BodyLimits, parse_call
from data_plane.gateway.api.prompt_counter import PromptCounter
from tenora.stack.program import Program, accepts_connections, answers, free_port
from tests.fixtures.gateway.published import AMPLE, Publisher
from tests.fixtures.gateway.tiny_tokenizer import tiny_route, tokenizer_json
from tests.fixtures.processes import ENGINE_KEY, PEPPER, ROOT, SALT_SECRET, gateway, running, valkey
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

_BEAT_S: Final = 0.5
_BLOCK_TOKENS: Final = 16
_OWN: Final = {
    "reserve_deadline_ms": 5000,
    "platform_requests_per_minute": 10**9,
    "platform_concurrent_requests": 10**7,
}
LIMITS: Final = msgspec.structs.replace(
    AMPLE, concurrent_requests=100_000, kv_pages=10**9, requests_per_minute=10**9, tokens_per_minute=10**9
)
KEY_LIMITS: Final = KeyLimits(
    concurrent_requests=100_000, kv_pages=10**9, requests_per_minute=10**9, tokens_per_minute=10**9,
    tokens_per_month=10**12, spend_nanos_per_month=10**15,
)  # fmt: skip
PRICES: Final = Prices(input_nanos=100, cached_input_nanos=25, output_nanos=400, kv_page_second_nanos=50)
CEILING_NANOS: Final = 10**15


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A running program under test. ``pid`` is the root of its processes; ``store_pid`` is that of the store it needs.

    ``concurrency`` is the number of concurrent streams at which it reaches its best throughput.
    """

    name: str
    port: int
    pid: int
    key: str = "none"
    store_pid: int | None = None
    concurrency: int = 128


@dataclass(frozen=True)
class Cores:
    """The assignment of cores. With two cores the gateway has one, and the kernel shares the other between the rest."""

    gateway: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of_this_machine(cls) -> "Cores":
        """Assign the first core that this process may use to the gateways."""
        first, *rest = sorted(os.sched_getaffinity(0))
        return cls(frozenset({first}), frozenset(rest or [first]))


@contextlib.contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """Pin processes that this thread starts inside the block to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def prompt_tokens(number: int = 0) -> int:
    """Prompt tokens of a request, as the gateway and therefore the engine count them. All requests have the same."""
    call = parse_call("chat", request_body(number, stream=False), BodyLimits(24, 256))
    return sum(PromptCounter(tokenizer_json(), tiny_route()).count(call))


@contextlib.contextmanager
def upstream(folder: Path, *options: str) -> Iterator[Contender]:
    """The mock engine."""
    port = free_port()
    with running(
        _module(
            "upstream", "benchmarks.gateway.upstream", folder, port, "--prompt-tokens", str(prompt_tokens()), *options
        )
    ) as process:
        yield Contender(name="upstream", port=port, pid=process.pid)


@dataclass(frozen=True, kw_only=True)
class Store:
    """A Valkey with everything that a gateway needs: a published API key and a live replica."""

    client: "redis.Redis"
    url: str
    pid: int
    key: str

    def usage_events(self) -> int:
        """Settled requests so far."""
        return self.client.xlen(redis_keys.USAGE_STREAM)

    def trim(self) -> None:
        """Delete the usage events, as billing does after recording them."""
        self.client.xtrim(redis_keys.USAGE_STREAM, maxlen=0, approximate=False)


@contextlib.contextmanager
def store(folder: Path, upstream_port: int) -> Iterator[Store]:
    """Start Valkey with its append-only file, the upstream as the only replica, and one tenant.

    The tenant and its key have limits that the load never reaches; the tenant has prices and a spend ceiling.
    """
    with valkey(folder) as server:
        publisher = Publisher(server.client, PEPPER)
        publisher.base_model()
        tenant_id = publisher.tenant(LIMITS, prices=PRICES, spend_ceiling_nanos=CEILING_NANOS)
        key = publisher.key(tenant_id, limits=KEY_LIMITS)
        with _beating(server.client, f"http://127.0.0.1:{upstream_port}"):
            yield Store(client=server.client, url=server.url, pid=server.process.pid, key=key)


@contextlib.contextmanager
def tenora(folder: Path, stored: Store, name: str = "tenora", **settings: object) -> Iterator[Contender]:
    """Start the gateway as shipped, with one process and platform limits set.

    Only the reservation deadline is longer than the default, since a closed loop saturates any machine.
    """
    with gateway(folder, stored.url, name, **_OWN, **settings) as process:
        port = int(process.url.rsplit(":", 1)[1])
        yield Contender(name=name, port=port, pid=process.process.pid, key=stored.key, store_pid=stored.pid)


@contextlib.contextmanager
def unmetered(folder: Path, stored: Store) -> Iterator[Contender]:
    """Start the gateway without its metering."""
    port = free_port()
    secrets_of = {
        "key_pepper": PEPPER,
        "engine_key": ENGINE_KEY,
        "salt_secret": SALT_SECRET,
        "snapshot_public_keys": PUBLIC_KEYS,
    }
    given = {
        **secrets_of,
        "redis_url": stored.url,
        "gateway_port": port,
        "metrics_port": 0,
        **_OWN,
        "journal_dir": folder,
    }
    program = Program(
        name="unmetered",
        argv=(sys.executable, "-m", "benchmarks.gateway.unmetered"),
        ready=lambda: answers(f"http://127.0.0.1:{port}/readyz"),
        log=folder / "unmetered.log",
        env={"PYTHONPATH": str(ROOT), **{f"TENORA_{name.upper()}": str(value) for name, value in given.items()}},
    )
    with running(program) as process:
        yield Contender(name="unmetered", port=port, pid=process.pid, key=stored.key, store_pid=stored.pid)


@contextlib.contextmanager
def bare_relay(folder: Path, upstream_port: int) -> Iterator[Contender]:
    """Start a relay with the same server and HTTP client, and no logic in between."""
    port = free_port()
    to = f"http://127.0.0.1:{upstream_port}"
    with running(_module("relay", "benchmarks.gateway.relay", folder, port, "--upstream", to)) as process:
        yield Contender(name="relay", port=port, pid=process.pid)


@contextlib.contextmanager
def peer(which: peers.Peer, home: Path, folder: Path, upstream_port: int) -> Iterator[Contender]:
    """Start a peer in front of the upstream. Raises benchmarks.gateway.peers.PeerUnavailable."""
    command = peers.installed(which, home)
    start = peers.litellm if which is peers.LITELLM else peers.router
    with start(command, folder, f"http://127.0.0.1:{upstream_port}") as (port, key, pid):
        made = Contender(name=which.name, port=port, pid=pid, key=key)
        # A higher concurrency only lengthens LiteLLM's queue: its throughput at 16 equals its throughput at 128.
        yield replace(made, concurrency=16) if which is peers.LITELLM else made


def _module(name: str, module: str, folder: Path, port: int, *arguments: str) -> Program:
    return Program(
        name=name,
        argv=(sys.executable, "-m", module, "--port", str(port), *arguments),
        ready=lambda: accepts_connections(port),
        log=folder / f"{name}.log",
        env={"PYTHONPATH": str(ROOT)},
    )


@contextlib.contextmanager
def _beating(client: "redis.Redis", url: str) -> Iterator[None]:
    """Publish heartbeats for a replica with ample capacity, and mark all usage events as recorded by billing."""
    stopped = threading.Event()

    def beat() -> None:
        while True:
            status = ReplicaStatus(
                id="rep_bench", url=url, base_model=MODEL, state="ready", boot_id="boot", block_tokens=_BLOCK_TOKENS,
                pages_total=10**9, pages_free=10**9, slots=8, running_requests=0, waiting_requests=0,
                heartbeat_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip
            client.set(redis_keys.replica(status.id), msgspec.json.encode(status), px=10_000)
            client.zadd(redis_keys.REPLICAS, {status.id: status.heartbeat_ms})
            for entry, _ in client.xrevrange(redis_keys.USAGE_STREAM, count=1) or ():
                assert isinstance(entry, bytes)
                client.set(redis_keys.USAGE_RECORDED, entry)
            if stopped.wait(_BEAT_S):
                return

    thread = threading.Thread(target=beat, name="beats")
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
