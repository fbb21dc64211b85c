"""Stored revisions are recorded only when the object is complete, and removed only with the last reference."""

import secrets
import threading

import pytest

from adapters.manifest import MANIFEST_FILE, WEIGHTS_FILE
from adapters.object_store.revision_store import revision_prefix
from adapters.object_store.s3 import Bucket
from adapters.settings import StoreSettings, UploadSettings
from control_plane.registry.cleanup.orphan_sweep import OrphanSweep
from control_plane.registry.cleanup.stored_revisions import StoredRevisionCleanup
from control_plane.registry.models import Revision
from control_plane.registry.review.validation_worker import ValidationWorker
from control_plane.registry.revisions import stored_digests
from control_plane.registry.revocations.receipts import ReceiptCollector
from core import db
from tests.fixtures.control_plane.registry_rows import impatient
from tests.fixtures.control_plane.worker import upload
from tests.fixtures.uploads.peft_adapters import write_adapter


@pytest.fixture
def s3_settings(s3_settings):
    """A bucket for each test, because a sweep would remove the objects of other tests."""
    own = s3_settings.model_copy(update={"s3_bucket": f"removal-{secrets.token_hex(6)}"})
    Bucket(own, StoreSettings()).ensure()
    return own


@pytest.fixture
def removal(engine, store) -> StoredRevisionCleanup:
    return StoredRevisionCleanup(engine, store, impatient())


@pytest.fixture
def validator(engine, store) -> ValidationWorker:
    return ValidationWorker(engine, store, UploadSettings(), impatient(canary_required=False))


@pytest.fixture
def forget(engine, redis):
    """Mark the revocations as unloaded; no replica is alive, so none is awaited."""
    return ReceiptCollector(engine, redis, impatient()).run_once


def validated(engine, tenant, validator, name: str, base, folder) -> str:
    """Upload and validate; returns the digest. Nothing is published here, so the API does not show it as ready."""
    tenant.adapter(name, base)
    path = upload(tenant, name, folder)
    assert validator.run_once()
    assert tenant.http.get(path).json()["stage"] == "publishing"
    with db.unit_of_work(engine) as session:
        row = session.get(Revision, path.rpartition("/")[2])
        return row.digest


def lies(store, digest: str) -> bool:
    return any(store.bucket.head(revision_prefix(digest) + name) is not None for name in (MANIFEST_FILE, WEIGHTS_FILE))


def states(tenant) -> set[str]:
    return {each["state"] for each in tenant.http.get("/api/v1/revocations").json()["data"]}


def test_the_object_is_removed_after_its_quarantine_with_the_last_adapter_of_its_digest(
    api, base, engine, store, validator, removal, forget, tmp_path
):
    ours, theirs = api.tenant(), api.tenant()
    folder = write_adapter(tmp_path / "a", base, seed=101)
    digest = validated(engine, ours, validator, "bot", base, folder)
    assert validated(engine, theirs, validator, "bot", base, folder) == digest
    removal.run_once()
    assert lies(store, digest)
    ours.http.delete("/api/v1/adapters/bot").raise_for_status()
    removal.run_once()
    assert states(ours) == {"stopping"}, "replicas have not answered"
    forget()
    patient = StoredRevisionCleanup(engine, store, impatient(revocation_quarantine_s=3600))
    patient.run_once()
    assert states(ours) == {"quarantined"}
    removal.run_once()
    assert (states(ours), lies(store, digest)) == ({"removed"}, True), "another tenant's adapter has the same digest"
    theirs.http.delete("/api/v1/adapters/bot").raise_for_status()
    forget()
    patient.run_once()
    assert lies(store, digest)
    for _ in range(2):
        removal.run_once()
        assert (states(theirs), lies(store, digest)) == ({"removed"}, False)


def test_an_old_object_of_a_dead_worker_without_a_row_is_removed(api, base, engine, store, validator, tmp_path):
    tenant = api.tenant()
    kept = validated(engine, tenant, validator, "bot", base, write_adapter(tmp_path / "a", base, seed=111))
    orphan = validated(engine, tenant, validator, "gone", base, write_adapter(tmp_path / "b", base, seed=112))
    with (
        engine.begin() as connection
    ):  # as if the worker had died before it recorded the object, and the adapter had been deleted
        change = "UPDATE revisions SET status = 'rejected', digest = NULL, checked_digest = NULL WHERE digest = %s"
        connection.exec_driver_sql(change, (orphan,))
    sweep(OrphanSweep(engine, store, impatient()))
    assert lies(store, orphan), "it may still be recorded"
    sweep(OrphanSweep(engine, store, impatient(orphan_age_s=0, cleanup_batch_max=1)))
    assert (lies(store, orphan), lies(store, kept)) == (False, True)


def sweep(orphans: OrphanSweep) -> None:
    while orphans.run_once():
        pass


def test_objects_of_a_failed_canary_are_removed(api, base, engine, store, removal, validator, tmp_path):
    tenant = api.tenant()
    digest = validated(engine, tenant, validator, "bot", base, write_adapter(tmp_path / "a", base, seed=102))
    with engine.begin() as connection:
        change = "UPDATE revisions SET status = 'rejected', digest = NULL, decided_at = now()"
        connection.exec_driver_sql(change)
    removal.run_once()
    assert not lies(store, digest)


def test_a_verdict_after_the_deletion_leaves_nothing_stored(api, base, engine, store, validator, tmp_path, monkeypatch):
    tenant = api.tenant()
    tenant.adapter("bot", base)
    upload(tenant, "bot", write_adapter(tmp_path / "a", base, seed=103))
    put, digests = store.put_revision, []

    def put_then_delete(folder, manifest):
        digests.append(put(folder, manifest))
        tenant.http.delete("/api/v1/adapters/bot").raise_for_status()
        return digests[-1]

    monkeypatch.setattr(store, "put_revision", put_then_delete)
    assert validator.run_once()
    assert not lies(store, digests[0])


def test_an_object_removed_during_its_second_validation_is_stored_again(
    api, base, engine, store, validator, removal, forget, tmp_path
):
    """The old copy is removed after the new upload found it stored and before that upload is recorded."""
    tenant = api.tenant()
    folder = write_adapter(tmp_path / "a", base, seed=104)
    digest = validated(engine, tenant, validator, "bot", base, folder)
    tenant.http.delete("/api/v1/adapters/bot").raise_for_status()
    forget()
    tenant.adapter("bot", base)
    path = upload(tenant, "bot", folder)
    put = store.put_revision

    def put_then_remove(work, manifest):
        found = put(work, manifest)
        removal.run_once()
        return found

    store.put_revision = put_then_remove
    assert validator.run_once()
    assert tenant.http.get(path).json()["status"] == "validating", "not recorded, because the object is absent"
    store.put_revision = put
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET next_attempt_at = now() - interval '1 s'")
    assert validator.run_once()
    assert tenant.http.get(path).json()["stage"] == "publishing"
    assert lies(store, digest)
    removal.run_once()
    assert lies(store, digest)


def test_decisions_about_one_digest_are_serialized(engine):
    digest, order, holding = "f" * 64, [], threading.Event()

    def second() -> None:
        holding.wait(10)
        with stored_digests.digest_lock(engine, digest):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with stored_digests.digest_lock(engine, digest):
        holding.set()
        thread.join(0.3)
        with stored_digests.digest_lock(engine, "e" * 64):
            order.append("another digest")
        order.append("first")
    thread.join(10)
    assert order == ["another digest", "first", "second"]
