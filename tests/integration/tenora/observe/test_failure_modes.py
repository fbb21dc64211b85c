"""Each failure mode of serving happens on a witness, and a real Prometheus sees its alert fire and clear.

The gateway, the agent, the fleet process and the billing worker are real. The test is the placer.
"""

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
FULL = "~" * 1980  # a prompt of so many tokens, which takes nearly all pages
FIRES_S, CLEARS_S = 30, 40
LIMITS = {"LongGenerations": ("> 120", "> 1"), "PrefillStall": ("> 5", "> 1")}


@dataclass
class Stack:
    gateway: processes.GatewayProcess
    key: str
    agent: processes.AgentProcess
    prometheus: Prometheus
    start_copy: Callable
    callers: ThreadPoolExecutor

    def ask(self, prompt: str = "hi", max_tokens: int = 8) -> Future[int]:
        """The status of a streamed request for the adapter."""
        body = {"model": "bot", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        url = f"{self.gateway.url}/v1/completions"
        return self.callers.submit(status_of, urllib.request.Request(url, json.dumps(body).encode(), headers))

    @contextlib.contextmanager
    def faults(self, **faults: object) -> Iterator[None]:
        """Faults of the adapter's requests: the agent's own are for the base model."""
        self.agent.engine.faults(adapters_only=True, **faults)
        yield
        self.agent.engine.faults()

    @contextlib.contextmanager
    def clears(self, alert: str) -> Iterator[None]:
        """An alert that fires in the block, and clears after it. What ran before may have raised it as well."""
        self.wait_for_the_end_of(alert)
        yield
        self.wait_for_the_end_of(alert)

    def wait_for_the_end_of(self, alert: str) -> None:
        wait_until(lambda: not self.prometheus.fires(alert), timeout_s=CLEARS_S, what=f"the end of {alert}")

    def wait_for(self, alert: str) -> None:
        wait_until(lambda: self.prometheus.fires(alert), timeout_s=FIRES_S, what=alert)


def status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


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
        callers = up.enter_context(ThreadPoolExecutor(4))
        stack = Stack(gateway, key, agent, found, start_copy, callers)
        wait_until(lambda: stack.ask().result() == 200, what="a first answer")
        assert stack.ask().result() == 200
        # A rate does not count what a series has when it is first scraped: the next requests must find it.
        scraped = 'tenora_gateway_phase_seconds_count{adapter_tier="slot"}'
        wait_until(lambda: found.query(scraped), what="the series of an adapter in a slot")
        stack.wait_for_the_end_of("ColdStart")
        yield stack


def test_long_generations(stack):
    with stack.clears("LongGenerations"), stack.faults(token_interval_s=0.1, output_tokens=30):
        assert stack.ask(max_tokens=30).result() == 200
        stack.wait_for("LongGenerations")


def test_a_prefill_stall(stack):
    with stack.clears("PrefillStall"), stack.faults(first_token_s=1.5):
        assert stack.ask().result() == 200
        stack.wait_for("PrefillStall")


def test_kv_exhaustion_and_a_queue_that_runs_away(stack):
    """One request takes all pages and two wait for them: the queue is full, and refuses more."""
    with stack.clears("KvExhaustion"), stack.clears("QueueRunaway"), stack.faults(held=True, times=1):
        asked = [stack.ask(FULL)]
        wait_until(lambda: stack.agent.metric("tenora_replica_free_kv_pages") < 0.05 * PAGES, what="full pages")
        asked += [stack.ask(FULL), stack.ask(FULL)]
        wait_until(lambda: stack.gateway.metric("tenora_gateway_waiting_requests") == 2, what="a full queue")
        stack.wait_for("KvExhaustion")
        while not stack.prometheus.fires("QueueRunaway"):
            assert stack.ask().result() == 503
        stack.agent.engine.release(1)
        assert [each.result() for each in asked] == [200] * 3


def test_a_cold_start(stack, api):
    def want(replicas: int) -> None:
        api.admin.patch(POOL, json={"replicas_min": replicas, "replicas_max": replicas}).raise_for_status()

    with stack.clears("ColdStart"):
        want(2)
        stack.wait_for("ColdStart")
        with stack.start_copy("rep_two") as second:
            wait_until(lambda: second.metric("tenora_replica_ready"), what="a second replica")
            stack.wait_for_the_end_of("ColdStart")
            want(1)
            wanted = 'max(tenora_fleet_wanted_replicas{pool="chat"}) == 1'
            wait_until(lambda: stack.prometheus.query(wanted), what="one wanted replica")


def test_every_query_of_every_panel_returns_data(stack):
    assert (stack.ask().result(), stack.ask(max_tokens=-1).result()) == (200, 400)
    queries = {expr for dashboard in DASHBOARDS for panel in dashboard.panels for _, expr in panel.queries}
    for expr in sorted(queries):
        wait_until(lambda expr=expr: stack.prometheus.query(expr), what=expr)


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
