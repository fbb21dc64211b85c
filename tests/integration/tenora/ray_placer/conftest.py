"""A Ray cluster of a head without resources and three nodes, and a gateway."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from core import redis_acl, redis_keys
from core.contracts.fleet import WantedPool, WantedRevision
from core.contracts.replicas import ReplicaStatus
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.gateway.published import Publisher
from tests.fixtures.least_privilege import user_url
from tests.fixtures.ray.cluster import START_S, RayCluster, published, ray_cluster, ready
from tests.fixtures.snapshot_keys import PUBLIC_KEYS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.ray)


@dataclass
class RayStack:
    """What a test of the placer uses."""

    ray: RayCluster
    valkey: processes.ValkeyProcess
    gateway: processes.GatewayProcess
    publisher: Publisher
    folder: Path

    def want(self, pool: str, revisions: dict[int, int], **environment: str) -> None:
        """What the fleet process writes: replicas by revision number."""
        given = {"TENORA_BASE_MODEL": "tiny-chat", "TENORA_MODEL_PATH": str(self.folder), **environment}
        wanted = WantedPool(
            pool=pool,
            revisions=tuple(
                WantedRevision(number=number, replicas=count, environment=given) for number, count in revisions.items()
            ),
        )
        self.valkey.client.hset(redis_keys.FLEET_WANTED, pool, msgspec.json.encode(wanted))

    def want_nothing(self) -> None:
        """Of every pool that a test has wanted replicas of."""
        for pool in self.valkey.client.hkeys(redis_keys.FLEET_WANTED):
            self.want(pool.decode(), {})

    def replicas(self) -> dict[str, ReplicaStatus]:
        return published(self.valkey.client)

    def ready(self) -> dict[str, ReplicaStatus]:
        return ready(self.valkey.client)

    def wait_ready(self, count: int, timeout_s: float = START_S) -> dict[str, ReplicaStatus]:
        wait_until(lambda: len(self.ready()) == count, timeout_s=timeout_s, what=f"{count} ready replicas")
        return self.ready()

    def placer(self, *options: str) -> AbstractContextManager:
        """``options`` are those of the witnesses."""
        return self.ray.placer(self.folder, user_url(self.valkey.url, redis_acl.PLACER), *options)


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[RayStack]:
    folder = tmp_path_factory.mktemp("ray")
    with processes.valkey(folder) as valkey:
        publisher = Publisher(valkey.client, processes.PEPPER)
        publisher.base_model()
        environment = {
            "TENORA_ENGINE_KEY": processes.ENGINE_KEY,
            "TENORA_REDIS_URL": user_url(valkey.url, redis_acl.REPLICA),
            "TENORA_SNAPSHOT_PUBLIC_KEYS": PUBLIC_KEYS,
        }
        with (
            processes.gateway(folder, valkey.url, replica_poll_ms=50, inter_token_s=60) as gateway,
            ray_cluster(folder, environment, redis_url=valkey.url) as cluster,
        ):
            yield RayStack(cluster, valkey, gateway, publisher, folder)
