"""A replica runs exactly its pool's revision, whatever placed it, or it does not start."""

import contextlib
from collections.abc import Iterator

import pytest
import redis

from adapters.base_weights import WeightStore, read_weights
from adapters.object_store.revision_store import RevisionStore
from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings
from core.contracts.pool_revisions import PoolRevision, settings_of
from core.engine_settings import EngineSettings
from tests.conftest import wait_until
from tests.fixtures import processes
from tests.fixtures.engine.agent_harness import REPLICA, AgentHarness
from tests.fixtures.gateway.published import Publisher


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    return folder


@pytest.fixture
def revision(checkpoint) -> PoolRevision:
    """What the fixture's agent runs: its engine, a witness, has no name."""
    return PoolRevision(
        base_model="tiny-chat", weights=read_weights(checkpoint).digest, engine="unnamed",
        settings=settings_of(EngineSettings(engine_slots=4)),
    )  # fmt: skip


@contextlib.contextmanager
def replica(redis_url, folder, *, ends=False, **settings) -> Iterator[AgentHarness]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        publisher = Publisher(client, processes.PEPPER)
        publisher.base_model()
        with processes.agent(folder, redis_url, REPLICA, ends=ends, **{"pool": "chat", **settings}) as agent:
            yield AgentHarness(client, publisher, agent)


def becomes(harness, state):
    wait_until(lambda: (now := harness.status()) and now.state == state, what=f"a replica that is {state}")
    return harness.status()


def test_a_replica_of_the_revision_is_ready_and_names_it(redis_server, tmp_path, checkpoint, revision):
    with replica(
        redis_server, tmp_path, model_path=checkpoint, pool_revision=revision.digest, engine_slots=4
    ) as harness:
        status = becomes(harness, "ready")
        assert (status.pool, status.revision) == ("chat", revision.digest)


@pytest.mark.parametrize("differs", ["setting", "weights"])
def test_a_replica_that_would_run_anything_else_fails(redis_server, tmp_path, checkpoint, revision, differs):
    if differs == "weights":
        (checkpoint / "model.safetensors").write_bytes(b"other weights")
    slots = 5 if differs == "setting" else 4
    chosen = {"model_path": checkpoint, "pool_revision": revision.digest, "engine_slots": slots}
    with replica(redis_server, tmp_path, ends=True, **chosen) as harness:
        status = becomes(harness, "failed")
        assert status.reason.startswith("revision_mismatch")
        assert (status.revision, f"'engine_slots': {slots}" in status.reason) == (revision.digest, True)
        assert harness.agent.process.wait(20) == 1


def test_a_replica_downloads_its_weights_by_their_digest(redis_server, s3_settings, tmp_path, checkpoint, revision):
    store = RevisionStore(Bucket(s3_settings, StoreSettings()))
    store.bucket.ensure()
    WeightStore(store).put(checkpoint, read_weights(checkpoint), lambda _sent: None)
    where = {
        "s3_endpoint": s3_settings.s3_endpoint, "s3_access_key": s3_settings.s3_access_key,
        "s3_secret_key": s3_settings.s3_secret_key.get_secret_value(), "model_cache_dir": tmp_path / "models",
    }  # fmt: skip
    chosen = {"model_path": None, "model_digest": revision.weights, "engine_slots": 4}
    with replica(redis_server, tmp_path, pool_revision=revision.digest, **chosen, **where) as harness:
        becomes(harness, "ready")
        assert read_weights(tmp_path / "models" / revision.weights).digest == revision.weights
    unknown = {**chosen, "model_digest": "0" * 64, "pool": None, **where}
    with replica(redis_server, tmp_path, ends=True, **unknown) as harness:
        assert "tenora base-models push" in becomes(harness, "failed").reason
