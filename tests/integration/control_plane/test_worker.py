"""The worker as a real process: it publishes in time, validates real uploads, and recovers after a crash."""

import signal
import time

import httpx
import msgspec
import pytest

from adapters.manifest import MANIFEST_FILE
from adapters.object_store.revision_store import revision_prefix
from adapters.report import UploadProblem, rejected
from control_plane.registry.cleanup.uploads import UploadCleanup
from control_plane.registry.review import validation_jobs
from core import db, redis_keys
from core.api_keys import hash_key
from core.contracts.routes import AdapterRoute
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import PEPPER
from tests.fixtures.control_plane.worker import decided, running_worker, upload
from tests.fixtures.uploads.peft_adapters import declared_files, write_adapter


def test_a_good_adapter_becomes_ready_and_is_routed(api, base, settings, redis, store, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    with running_worker(settings) as worker:
        path = upload(tenant, "router", write_adapter(tmp_path / "a", base))
        revision = decided(tenant, path)
        assert (revision["status"], revision["report"]["problems"]) == ("ready", [])
        field = f"{tenant.id}/router"
        value = wait_until(lambda: redis.hget(redis_keys.snapshot("adapters"), field), what="route")
        route = msgspec.json.decode(value, type=AdapterRoute)
        assert (route.revisions[route.newest].digest, route.newest) == (revision["sha256"], revision["id"])
        assert store.bucket.head(revision_prefix(revision["sha256"]) + MANIFEST_FILE)
        assert tenant.http.get("/api/v1/adapters/router").json()["revision"] == revision["id"]
        second = decided(tenant, upload(tenant, "router", write_adapter(tmp_path / "b", base, seed=1)))
        wait_until(
            lambda: second["sha256"] in (redis.hget(redis_keys.snapshot("adapters"), field) or b"").decode(),
            what="new route",
        )
        tenant.http.delete("/api/v1/adapters/router").raise_for_status()
        wait_until(lambda: not redis.hexists(redis_keys.snapshot("adapters"), field), what="end of the route")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0


def test_a_revoked_key_is_removed_from_redis_within_two_seconds(api, settings, redis, promised_s):
    tenant = api.tenant()
    with running_worker(settings):
        seconds = []
        for _ in range(5):
            made = tenant.http.post("/api/v1/api-keys", json={}).json()
            field = hash_key(made["key"], PEPPER.encode())
            wait_until(lambda field=field: redis.hexists(redis_keys.snapshot("keys"), field), what="key")
            tenant.http.delete(f"/api/v1/api-keys/{made['id']}").raise_for_status()
            begun = time.monotonic()
            wait_until(lambda field=field: not redis.hexists(redis_keys.snapshot("keys"), field), what="revocation")
            seconds.append(time.monotonic() - begun)
    assert max(seconds) < promised_s(2), seconds


def test_a_validation_does_not_delay_a_revocation(api, base, settings, redis, tmp_path, promised_s):
    """Two loops of one worker are independent: changes are published while S3 does not answer."""
    tenant = api.tenant()
    tenant.adapter("router", base)
    path = upload(tenant, "router", write_adapter(tmp_path / "a", base))
    made = tenant.http.post("/api/v1/api-keys", json={}).json()
    with running_worker(settings, TENORA_S3_ENDPOINT="http://127.0.0.1:9", TENORA_VALIDATION_BACKOFF_S="1"):
        field = hash_key(made["key"], PEPPER.encode())
        wait_until(lambda: redis.hexists(redis_keys.snapshot("keys"), field), what="key")
        tenant.http.delete(f"/api/v1/api-keys/{made['id']}").raise_for_status()
        wait_until(
            lambda: not redis.hexists(redis_keys.snapshot("keys"), field), timeout_s=promised_s(2), what="revocation"
        )
        assert tenant.http.get(path).json()["status"] == "validating", "an S3 outage gives no verdict on the upload"
    with running_worker(settings):
        assert decided(tenant, path)["status"] == "ready"


def test_validations_alternate_between_tenants(api, base, engine, tmp_path):
    flood, single = api.tenant(), api.tenant()
    folder = write_adapter(tmp_path / "a", base)
    for tenant in (flood, single):
        tenant.adapter("router", base)
    paths = [upload(tenant, "router", folder) for tenant in (flood, flood, flood, single)]
    order = []
    verdict = rejected(UploadProblem(code="validation_failed", message="no"))
    for _ in paths:
        with db.unit_of_work(engine) as session:
            job = validation_jobs.claim(session, lease_s=60, attempts_max=3)
        order.append(job.revision_id)
        with db.unit_of_work(engine) as session:
            assert validation_jobs.record(session, job, verdict, canary_required=False)
    expected = [paths[0], paths[3], paths[1], paths[2]]
    assert order == [path.rpartition("/")[2] for path in expected]


def test_a_worker_that_lost_its_lease_cannot_record(api, base, engine, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    path = upload(tenant, "router", write_adapter(tmp_path / "a", base))
    with db.unit_of_work(engine) as session:
        late = validation_jobs.claim(session, lease_s=60, attempts_max=3)
        assert validation_jobs.renew_lease(session, late, lease_s=60)
    _expire_leases(engine)
    with db.unit_of_work(engine) as session:
        current = validation_jobs.claim(session, lease_s=60, attempts_max=3)
    verdict = rejected(UploadProblem(code="validation_failed", message="no"))
    with db.unit_of_work(engine) as session:
        assert not validation_jobs.renew_lease(session, late, lease_s=60)
        assert not validation_jobs.record(session, late, verdict, canary_required=False)
    assert tenant.http.get(path).json()["status"] == "validating"
    with db.unit_of_work(engine) as session:
        assert validation_jobs.record(session, current, verdict, canary_required=False)
    assert tenant.http.get(path).json()["status"] == "rejected"


def test_uploads_that_were_never_completed_expire_and_their_objects_are_removed(api, base, engine, uploads, tmp_path):
    tenant = api.tenant()
    tenant.adapter("router", base)
    folder = write_adapter(tmp_path / "a", base)
    revision = tenant.announce("router", declared_files(folder))
    first = revision["uploads"][0]
    content = (folder / first["path"]).read_bytes()
    httpx.request(first["method"], first["url"], headers=first["headers"], content=content).raise_for_status()
    cleanup = UploadCleanup(engine, uploads, upload_expires_s=3600, url_expires_s=60, batch_max=10)
    path = f"/api/v1/adapters/router/revisions/{revision['id']}"
    cleanup.run_once()
    assert tenant.http.get(path).json()["status"] == "uploading"
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET created_at = created_at - interval '2 hours'")
    for _ in range(2):
        cleanup.run_once()
    now = tenant.http.get(path).json()
    assert (now["status"], now["report"]["problems"][0]["code"]) == ("rejected", "upload_expired")
    assert uploads.head(f"uploads/{revision['id']}/{first['path']}") is None
    late = tenant.http.post(f"{path}/complete")
    assert (late.status_code, late.json()["status"]) == (202, "rejected")


def test_the_worker_survives_a_redis_outage(api, settings, redis):
    tenant = api.tenant()
    with running_worker(settings) as worker:
        wait_until(lambda: redis.hexists(redis_keys.snapshot("tenants"), tenant.id), what="tenant")
        redis.client_kill_filter(skipme=True, _type="normal")
        redis.flushall()
        wait_until(lambda: redis.hexists(redis_keys.snapshot("tenants"), tenant.id), what="tenant again")
        assert worker.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_the_worker_stops_when_asked(api, settings, number):
    with running_worker(settings) as worker:
        worker.send_signal(number)
        assert worker.wait(20) == 0


def _expire_leases(engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET next_attempt_at = now() - interval '1 s'")
