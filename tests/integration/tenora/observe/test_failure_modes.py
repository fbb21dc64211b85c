"""Each failure mode of serving happens on a witness, and a real Prometheus sees its alert fire and clear.

The gateway, the agent, the fleet process and the billing worker are real. The test is the placer.
"""

import contextlib
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import redis as redis_client

from adapters.base_weights import read_weights
from control_plane import database_roles
from core import redis_acl, redis_keys
from core.contracts.fleet import WantedPool
from tenora.observe.dashboards import DASHBOARDS
from tenora.stack.program import Program, answers, free_port
from tests.conftest import running, wait_until
from tests.fixtures import billing_worker, processes
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.least_privilege import user_url
from tests.fixtures.prometheus import BINARIES, Prometheus, prometheus
from tests.fixtures.uploads.peft_adapters import tiny_base

pytestmark = pytest.mark.prometheus
ROOT = Path(__file__).parents[4]
POOL = "/api/v1/admin/pools/chat"
PAGES = 128
ONE_CHARACTER = "~"  # one token of the tiny tokenizer
FULL = ONE_CHARACTER * 1980  # a prompt that takes nearly all pages
FIRES_S, CLEARS_S = 30, 40
LIMITS = {"LongGenerations": ("> 120", "> 1"), "PrefillStall": ("> 5", "> 1")}


class Request(threading.Thread):
    """A streamed request for the adapter, and the status of its answer."""

    def __init__(self, url: str, key: str, prompt: str, max_tokens: int, **fields: object) -> None:
        super().__init__()
        body = {"model": "bot", "prompt": prompt, "max_tokens": max_tokens, "stream": True, **fields}
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self.request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        self.status = 0
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self.request, timeout=60) as answer:
                answer.read()
                self.status = answer.status
        except urllib.error.HTTPError as error:
            self.status = error.code


@dataclass
class Stack:
    gateway: processes.GatewayProcess
    key: str
    agent: processes.AgentProcess
    prometheus: Prometheus
    start_copy: Callable
    sent: list[Request] = field(default_factory=list)

    def ask(self, prompt: str = "hi", max_tokens: int = 8, **fields: object) -> Request:
        self.sent.append(Request(self.gateway.url, self.key, prompt, max_tokens, **fields))
        return self.sent[-1]

    def waiting(self) -> float:
        return self.gateway.metric("tenora_gateway_waiting_requests")

    def end_requests(self) -> None:
        for each in self.sent:
            each.join()
        self.sent.clear()

    @contextlib.contextmanager
    def faults(self, **faults: object) -> Iterator[None]:
        """Faults of the adapter's requests: the agent's own are for the base model."""
        self.agent.engine.faults(adapters_only=True, **faults)
        try:
            yield
        finally:
            self.agent.engine.faults()

    @contextlib.contextmanager
    def fires(self, alert: str) -> Iterator[None]:
        """The alert fires by the end of the block, and clears after what the block entered has ended."""
        assert not self.prometheus.fires(alert)
        yield
        wait_until(lambda: not self.prometheus.fires(alert), timeout_s=CLEARS_S, what=f"the end of {alert}")

    def wait_for(self, alert: str, again: Callable[[], object] = lambda: None) -> None:
        wait_until(lambda: again() or self.prometheus.fires(alert), timeout_s=FIRES_S, what=alert)


def program(name: str, log: Path, environment: dict[str, str], *arguments: str) -> tuple[Program, str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    return Program(
        name=name,
        argv=(sys.executable, "-m", *arguments),
        ready=lambda: answers(url),
        log=log,
        env={**environment, "TENORA_METRICS_PORT": str(port)},
    ), url


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture(scope="module")
def pool(api, checkpoint) -> None:
    """A pool that should have one replica, whose base model is the witness's."""
    api.register(msgspec.structs.replace(tiny_base(), id="tiny-chat")).raise_for_status()
    body = {"name": "chat", "base_model": "tiny-chat", "replicas_min": 1, "replicas_max": 1}
    api.admin.post("/api/v1/admin/pools", json=body).raise_for_status()
    revision = {"weights": read_weights(checkpoint).digest, "engine": "unnamed"}
    api.admin.post(f"{POOL}/revisions", json=revision).raise_for_status()
    api.admin.put(f"{POOL}/revision", json={"revision": 1}).raise_for_status()


@pytest.fixture(scope="module")
def stack(module_postgres_settings, redis_server, checkpoint, pool, tmp_path_factory) -> Iterator[Stack]:
    folder, dsn = tmp_path_factory.mktemp("stack"), module_postgres_settings.postgres_dsn
    with contextlib.ExitStack() as up:
        redis = up.enter_context(redis_client.Redis.from_url(redis_server))
        redis.flushall()
        publisher = Publisher(redis, processes.PEPPER)
        publisher.base_model()
        tenant_id = publisher.tenant()
        key = publisher.key(tenant_id)
        publisher.adapter(tenant_id, "bot")
        worker = {
            "TENORA_POSTGRES_DSN": user_url(dsn, database_roles.WORKER),
            "TENORA_REDIS_URL": user_url(redis_server, redis_acl.WORKER),
        }
        fleet, fleet_url = program("fleet", folder / "fleet.log", worker, "control_plane", "fleet")
        billing, billing_url = program(
            "billing", folder / "billing.log", billing_worker.environment(dsn, redis_server), "billing", "worker"
        )
        for each in (fleet, billing):
            up.enter_context(running(each))
        wait_until(lambda: redis.hget(redis_keys.FLEET_WANTED, "chat"), what="a wanted replica")
        wanted = msgspec.json.decode(redis.hget(redis_keys.FLEET_WANTED, "chat"), type=WantedPool)
        copy = {name.removeprefix("TENORA_").lower(): text for name, text in wanted.revisions[0].environment.items()}
        copy |= {"model_path": checkpoint, "model_digest": None}

        def start_copy(replica_id: str):
            return processes.agent(folder, redis_server, replica_id, engine={"pages": PAGES}, **copy)

        gateway = up.enter_context(
            processes.gateway(folder, redis_server, queue_wait_s=120, queue_requests_max=2, replica_poll_ms=50)
        )
        agent = up.enter_context(start_copy("rep_one"))
        urls = {
            "gateway": gateway.metrics_url,
            "replica": agent.metrics_url,
            "fleet": fleet_url,
            "billing": billing_url,
        }
        found = up.enter_context(prometheus(folder, urls, LIMITS))
        stack = Stack(gateway, key, agent, found, start_copy)
        wait_until(lambda: agent.metric("tenora_replica_ready"), what="a ready replica")
        wait_until(lambda: (stack.ask(), stack.end_requests(), gateway.metric(OK))[2], what="a first answer")
        wait_until(lambda: not found.fires("ColdStart"), timeout_s=CLEARS_S, what="the start of the pool")
        yield stack


OK = 'tenora_gateway_requests_total{route="/v1/completions",status="200"}'


def test_long_generations(stack):
    with stack.fires("LongGenerations"):
        with stack.faults(token_interval_s=0.1, output_tokens=30):
            stack.ask(max_tokens=30)
            stack.wait_for("LongGenerations")
        stack.end_requests()


def test_a_prefill_stall(stack):
    with stack.fires("PrefillStall"):
        with stack.faults(first_token_s=1.5):
            stack.ask()
            stack.wait_for("PrefillStall")
        stack.end_requests()


def test_kv_exhaustion_and_a_queue_that_runs_away(stack):
    """One request takes all pages and two wait for them: the queue is full, and refuses more."""
    with stack.fires("KvExhaustion"), stack.fires("QueueRunaway"), stack.faults(held=True, times=1):
        stack.ask(FULL)
        wait_until(lambda: stack.agent.metric("tenora_replica_free_kv_pages") < 0.05 * PAGES, what="full pages")
        first, second = stack.ask(FULL), stack.ask(FULL)
        wait_until(lambda: stack.waiting() == 2, what="a full queue")
        stack.wait_for("KvExhaustion")
        stack.wait_for("QueueRunaway", again=lambda: stack.ask().join())
        stack.agent.engine.release(1)
        for each in (first, second):
            each.join()
        assert {each.status for each in stack.sent} == {200, 503}
        stack.sent.clear()


def test_a_cold_start(stack, api):
    def want(replicas: int) -> None:
        api.admin.patch(POOL, json={"replicas_min": replicas, "replicas_max": replicas}).raise_for_status()

    with stack.fires("ColdStart"):
        want(2)
        stack.wait_for("ColdStart")
        with stack.start_copy("rep_two") as second:
            wait_until(lambda: second.metric("tenora_replica_ready"), what="a second replica")
            wait_until(lambda: not stack.prometheus.fires("ColdStart"), timeout_s=CLEARS_S, what="the end of the start")
            want(1)
            wanted = 'max(tenora_fleet_wanted_replicas{pool="chat"}) == 1'
            wait_until(lambda: stack.prometheus.query(wanted), what="one wanted replica")


def test_every_query_of_every_panel_returns_data(stack):
    stack.ask()
    stack.ask(max_tokens=-1)
    stack.end_requests()
    queries = {expr for dashboard in DASHBOARDS for panel in dashboard.panels for _, expr in panel.queries}
    left = set(queries)

    def all_answer() -> bool:
        left.difference_update([expr for expr in left if stack.prometheus.query(expr)])
        return not left

    with contextlib.suppress(pytest.fail.Exception):
        wait_until(all_answer, timeout_s=10)
    assert left == set()


def test_promtool_accepts_the_rules_and_the_first_event_of_a_series_raises_its_alert(tmp_path):
    test = {
        "rule_files": [str(ROOT / "deploy" / "prometheus" / f"{name}.yml") for name in ("rules", "alerts")],
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": 'tenora_billing_dead_letters_total{code="x"}', "values": "_x40 1x40"}],
                "promql_expr_test": [
                    {"expr": 'count(ALERTS{alertname="EventsSetAside"})', "eval_time": time, "exp_samples": samples}
                    for time, samples in (("9m", []), ("11m", [{"value": 1}]), ("18m", []))
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(
        (BINARIES / "promtool", "test", "rules", tmp_path / "test.yml"), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
