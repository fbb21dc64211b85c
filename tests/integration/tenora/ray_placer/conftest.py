"""A Ray cluster of a head without resources and three nodes, a gateway, and the placer as a process of its own."""

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core import redis_acl, redis_keys
from core.contracts.fleet import WantedPool, WantedRevision
from core.contracts.replicas import ReplicaStatus, read_status
from tenora.stack.program import Program, answers, free_port
from tests.conftest import running, wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.least_privilege import user_url
from tests.fixtures.snapshot_keys import PUBLIC_KEYS

RESOURCES = '{"replica": 1}'
OBJECT_STORE_BYTES = 80 << 20
START_S = 90


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)


@dataclass
class RayStack:
    """What a test of the placer uses. ``environment`` is that of the nodes, without a revision's own."""

    cluster: Any
    valkey: processes.ValkeyProcess
    gateway: processes.GatewayProcess
    publisher: Publisher
    folder: Path
    nodes: list[Any] = field(default_factory=list)

    def add_node(self) -> Any:
        self.nodes.append(
            self.cluster.add_node(num_cpus=0, resources={"replica": 1}, object_store_memory=OBJECT_STORE_BYTES)
        )
        return self.nodes[-1]

    def want(self, pool: str, revisions: dict[int, int], **environment: str) -> None:
        """What the fleet process writes: replicas by revision number."""
        given = {"TENORA_BASE_MODEL": "tiny-chat", "TENORA_MODEL_PATH": str(self.folder), **environment}
        wanted = WantedPool(
            pool=pool,
            revisions=tuple(
                WantedRevision(number=number, replicas=count, environment=given | {"WITNESS_REVISION": str(number)})
                for number, count in revisions.items()
            ),
        )
        self.valkey.client.hset(redis_keys.FLEET_WANTED, pool, msgspec.json.encode(wanted))

    def replicas(self) -> dict[str, ReplicaStatus]:
        names = [name.decode() for name in self.valkey.client.zrange(redis_keys.REPLICAS, 0, -1)]
        found = (self.valkey.client.get(redis_keys.replica(name)) for name in names)
        statuses = [status for value in found if value and (status := read_status(value))]
        return {status.id: status for status in statuses}

    def ready(self) -> dict[str, ReplicaStatus]:
        return {name: status for name, status in self.replicas().items() if status.state == "ready"}

    def wait_ready(self, count: int, timeout_s: float = START_S) -> dict[str, ReplicaStatus]:
        wait_until(lambda: len(self.ready()) == count, timeout_s=timeout_s, what=f"{count} ready replicas")
        return self.ready()

    @contextlib.contextmanager
    def placer(self, *options: str) -> Iterator[subprocess.Popen]:
        """``options`` are those of the witnesses."""
        port = free_port()
        command = (sys.executable, "-m", "tests.fixtures.ray.witness_replica", *options)
        program = Program(
            name="ray-placer",
            argv=(sys.executable, "-m", "tenora", "ray-placer", "--", *command),
            ready=lambda: answers(f"http://127.0.0.1:{port}/livez"),
            log=self.folder / "ray-placer.log",
            env={
                "TENORA_REDIS_URL": user_url(self.valkey.url, redis_acl.PLACER),
                "TENORA_RAY_ADDRESS": self.cluster.address,
                "TENORA_RAY_RESOURCES": RESOURCES,
                "TENORA_DRAIN_S": "60",
                "TENORA_METRICS_PORT": str(port),
            },
            ready_s=START_S,
        )
        with running(program) as process:
            yield process


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[RayStack]:
    pytest.importorskip("ray", reason="`make test-ray` installs it")
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("ray")
    with processes.valkey(folder) as valkey, contextlib.ExitStack() as up:
        publisher = Publisher(valkey.client, processes.PEPPER)
        publisher.base_model()
        credentials, _, address = valkey.url.removeprefix("redis://").removesuffix("/0").rpartition("@")
        environment = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_REDIS_ADDRESS": address,
            "PYTHONPATH": str(processes.ROOT), "WITNESS_FOLDER": str(folder), "TENORA_ENGINE_HOST": "127.0.0.1",
            "TENORA_ENGINE_KEY": processes.ENGINE_KEY, "TENORA_REDIS_URL": user_url(valkey.url, redis_acl.REPLICA),
            "TENORA_SNAPSHOT_PUBLIC_KEYS": PUBLIC_KEYS, "TENORA_ENGINE_RUN_DIR": str(folder / "run"),
            "TENORA_CACHE_DIR": str(folder / "cache"), "TENORA_HEARTBEAT_S": "0.25", "TENORA_DRAIN_S": "60",
            "RAY_DEDUP_LOGS": "0",
        }  # fmt: skip
        for name, value in environment.items():
            up.enter_context(_set(name, value))
        gateway = up.enter_context(processes.gateway(folder, valkey.url, replica_poll_ms=50, inter_token_s=60))
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0, "include_dashboard": True, "object_store_memory": OBJECT_STORE_BYTES,
                "redis_password": credentials.removeprefix(":"),
            },
        )  # fmt: skip
        up.callback(cluster.shutdown)
        stack = RayStack(cluster, valkey, gateway, publisher, folder)
        for _ in range(3):
            stack.add_node()
        yield stack


@contextlib.contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
