"""The life cycle of an adapter with a real worker: uploaded, run by a replica, served, deleted, removed everywhere.

The test plays the replica's agent and writes exactly the agent's values to Redis.
"""

import msgspec

from adapters.manifest import MANIFEST_FILE
from adapters.object_store.revision_store import revision_prefix
from core import redis_keys
from core.contracts.canary import CanaryJob, CanaryResult
from core.contracts.revocations import Revocation
from tests.conftest import wait_until
from tests.fixtures.control_plane.registry_rows import answer, beat
from tests.fixtures.control_plane.worker import decided, running_worker, upload
from tests.fixtures.uploads.peft_adapters import write_adapter

AT_ONCE = {
    "TENORA_CANARY_REQUIRED": "true",
    "TENORA_REVOCATION_SETTLE_S": "0",
    "TENORA_REVOCATION_QUARANTINE_S": "0",
    "TENORA_CLEANUP_POLL_S": "1",
}


def test_an_adapter_is_validated_served_deleted_and_removed_from_every_replica_and_the_store(
    api, base, settings, redis, store, tmp_path
):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    replica = beat(redis, base.id)
    with running_worker(settings, **AT_ONCE):
        path = upload(tenant, "bot", write_adapter(tmp_path / "a", base, seed=201))
        jobs = redis_keys.canary_jobs(base.id, replica.rank_max)
        job = msgspec.json.decode(redis.brpop(jobs, timeout=30)[1], type=CanaryJob)
        checked = tenant.http.get(path).json()
        assert (checked["status"], checked["stage"]) == ("validating", "canary")
        assert store.bucket.head(revision_prefix(job.engine_name.partition("@")[2]) + MANIFEST_FILE)
        found = CanaryResult(
            revision_id=job.revision_id,
            attempt=job.attempt,
            replica_id=replica.id,
            code=None,
            message="",
            prompt="Hello",
            base_answer="Hi",
            adapter_answer="Ahoy",
            logprob_difference=1.0,
            load_ms=5,
        )
        redis.lpush(redis_keys.CANARY_RESULTS, msgspec.json.encode(found))
        revision = decided(tenant, path)
        assert (revision["status"], revision["rank"], revision["rank_class"]) == ("ready", 4, 512)
        assert revision["report"]["canary"]["replica"] == replica.id
        wait_until(lambda: redis.hexists(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), what="route")

        revocation = tenant.http.delete("/api/v1/adapters/bot").raise_for_status().json()
        wait_until(
            lambda: not redis.hexists(redis_keys.snapshot("adapters"), f"{tenant.id}/bot"), what="end of the route"
        )
        value = wait_until(lambda: redis.hget(redis_keys.snapshot("revocations"), revocation["id"]), what="revocation")
        assert msgspec.json.decode(value, type=Revocation).engine_names == (job.engine_name,)

        def state() -> str:
            return tenant.http.get(f"/api/v1/revocations/{revocation['id']}").json()["state"]

        answer(redis, revocation["id"], replica, state="draining", in_slots=(job.engine_name,))
        wait_until(lambda: state() == "draining", what="the replica's first word")
        answer(redis, revocation["id"], replica, after_s=1)
        wait_until(lambda: state() == "removed", what="removal")
        assert store.bucket.head(revision_prefix(revision["sha256"]) + MANIFEST_FILE) is None
