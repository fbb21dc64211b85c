"""Starts what the gateway's benchmarks compare, each on a core of its own: the upstream, Tenora's gateway with a real
Valkey, the bare relay, and the peers. Who is measured how is ``gateway``'s.
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
    """Something that answers the exchange. ``pid`` is the root of its processes; ``store_pid`` of what it needs beside
    it. ``concurrency`` is how many streams at a time it is given to show its best.
    """

    name: str
    port: int
    pid: int
    key: str = "none"
    store_pid: int | None = None
    concurrency: int = 128


@dataclass(frozen=True)
class Cores:
    """Which cores are whose. With two, the gateway has one and all else the other; the kernel must share that out."""

    gateway: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of_this_machine(cls) -> "Cores":
        """The first core that this process may use is the gateways'."""
        first, *rest = sorted(os.sched_getaffinity(0))
        return cls(frozenset({first}), frozenset(rest or [first]))


@contextlib.contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """What is started by this thread meanwhile stays on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def prompt_tokens(number: int = 0) -> int:
    """How many tokens a question has, as the gateway and so the engine count: all have as many."""
    call = parse_call("chat", request_body(number, stream=False), BodyLimits(24, 256))
    return PromptCounter(tokenizer_json(), tiny_route()).count(call)


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
    """A Valkey as gateways need it: a published key, and a replica that is alive."""

    client: "redis.Redis"
    url: str
    pid: int
    key: str

    def usage_events(self) -> int:
        """Settled requests so far."""
        return self.client.xlen(redis_keys.USAGE_STREAM)

    def trim(self) -> None:
        """Forget the usage events, as billing does once it has them."""
        self.client.xtrim(redis_keys.USAGE_STREAM, maxlen=0, approximate=False)


@contextlib.contextmanager
def store(folder: Path, upstream_port: int) -> Iterator[Store]:
    """Valkey with its append-only file, the upstream as its replica, and one tenant. It and its key have limits that
    are never met; it has prices, and a ceiling for what it spends.
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
    """The gateway as it is shipped, one process, and limits of the platform; but a reservation may wait longer,
    since a closed loop fills any machine.
    """
    with gateway(folder, stored.url, name, **_OWN, **settings) as process:
        port = int(process.url.rsplit(":", 1)[1])
        yield Contender(name=name, port=port, pid=process.process.pid, key=stored.key, store_pid=stored.pid)


@contextlib.contextmanager
def unmetered(folder: Path, stored: Store) -> Iterator[Contender]:
    """The gateway with its metering taken out."""
    port = free_port()
    secrets_of = {"key_pepper": PEPPER, "engine_key": ENGINE_KEY, "salt_secret": SALT_SECRET}
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
    """The same server and client, and nothing between."""
    port = free_port()
    to = f"http://127.0.0.1:{upstream_port}"
    with running(_module("relay", "benchmarks.gateway.relay", folder, port, "--upstream", to)) as process:
        yield Contender(name="relay", port=port, pid=process.pid)


@contextlib.contextmanager
def peer(which: peers.Peer, home: Path, folder: Path, upstream_port: int) -> Iterator[Contender]:
    """A peer before the upstream. Raises gateway_peers.PeerUnavailable."""
    command = peers.installed(which, home)
    start = peers.litellm if which is peers.LITELLM else peers.router
    with start(command, folder, f"http://127.0.0.1:{upstream_port}") as (port, key, pid):
        made = Contender(name=which.name, port=port, pid=pid, key=key)
        # More than it can work on only lengthens its queue: at 16 its throughput is what it is at 128.
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
    """An agent's heartbeats for a replica with room for everything, and billing's word that it has recorded all."""
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
