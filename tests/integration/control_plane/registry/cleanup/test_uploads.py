"""The leftovers of interrupted uploads are removed: objects, open multipart uploads and work folders."""

import httpx
import pytest

from adapters.object_store.upload_store import upload_key
from adapters.settings import PART_BYTES_MIN
from control_plane.registry.cleanup.uploads import UploadCleanup
from tests.fixtures.uploads.large_uploads import settings_in_parts, tenant_of_large_uploads

SHA = "0" * 64
FILES = [
    {"path": "adapter_config.json", "size_bytes": 2, "sha256": SHA},
    {"path": "adapter_model.safetensors", "size_bytes": PART_BYTES_MIN + 10, "sha256": SHA},
]
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def settings(postgres_settings, redis_settings, s3_settings):
    return settings_in_parts(postgres_settings, redis_settings, s3_settings)


@pytest.fixture
def tenant(api, base):
    return tenant_of_large_uploads(api, base)


@pytest.fixture
def cleanup(engine, uploads):
    return UploadCleanup(engine, uploads, upload_expires_s=3600, url_expires_s=60, batch_max=10)


def open_uploads(uploads, prefix: str) -> list[str]:
    listed = uploads.bucket.client.list_multipart_uploads(Bucket=uploads.bucket.name, Prefix=prefix)
    return [each["UploadId"] for each in listed.get("Uploads", [])]


def grow_older(engine, by: str = "2 hours") -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE revisions SET created_at = created_at - interval '{by}'")


def test_an_abandoned_multipart_upload_is_aborted(tenant, engine, uploads, cleanup):
    revision = tenant.announce("router", FILES)
    first = revision["uploads"][1]["parts"][0]
    httpx.put(first["url"], content=bytes(first["size_bytes"])).raise_for_status()
    key = upload_key(revision["id"], WEIGHTS)
    cleanup.run_once()
    assert len(open_uploads(uploads, key)) == 1, "it may still be completed"
    grow_older(engine)
    cleanup.run_once()
    assert open_uploads(uploads, key) == []
    assert httpx.put(first["url"], content=bytes(first["size_bytes"])).status_code == 404
    now = tenant.http.get(f"/api/v1/adapters/router/revisions/{revision['id']}").json()
    assert (now["status"], now["report"]["problems"][0]["code"]) == ("rejected", "upload_expired")
    late = tenant.http.post(f"/api/v1/adapters/router/revisions/{revision['id']}/complete")
    assert (late.status_code, late.json()["status"]) == (202, "rejected")


def test_open_multipart_uploads_of_a_decided_revision_are_removed_with_its_objects(tenant, engine, uploads, cleanup):
    revision = tenant.announce("router", FILES)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revisions SET status = 'rejected', report = '{}'")
    grow_older(engine, "10 minutes")
    cleanup.run_once()
    assert open_uploads(uploads, upload_key(revision["id"], WEIGHTS)) == []


def test_an_old_upload_without_a_row_is_aborted(engine, uploads, cleanup):
    key = "uploads/rev_nobody/file"
    upload_id = uploads.open_multipart(key)
    cleanup.run_once()
    assert open_uploads(uploads, key) == [upload_id]
    hurried = UploadCleanup(engine, uploads, upload_expires_s=-3600, url_expires_s=-3600, batch_max=10)
    while hurried.run_once():
        pass
    assert open_uploads(uploads, key) == []
