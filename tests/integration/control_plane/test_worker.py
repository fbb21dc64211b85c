"""The worker as a real process: it publishes in time, validates real uploads, and recovers after a crash."""

import signal

from adapters.report import UploadProblem, rejected
from control_plane.registry.review import validation_jobs
from core import db, redis_keys
from core.api_keys import hash_key
from tests.conftest import wait_until
from tests.fixtures.control_plane.api import PEPPER
from tests.fixtures.control_plane.worker import decided, running_worker, upload
from tests.fixtures.uploads.peft_adapters import write_adapter


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


def test_the_worker_survives_a_redis_outage_and_stops_when_asked(api, settings, redis):
    tenant = api.tenant()
    with running_worker(settings) as worker:
        wait_until(lambda: redis.hexists(redis_keys.snapshot("tenants"), tenant.id), what="tenant")
        redis.client_kill_filter(skipme=True, _type="normal")
        redis.flushall()
        wait_until(lambda: redis.hexists(redis_keys.snapshot("tenants"), tenant.id), what="tenant again")
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 0


def _expire_leases(engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET next_attempt_at = now() - interval '1 s'")
